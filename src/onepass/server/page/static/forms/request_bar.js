// The bar above the views that take the request of another view: what the request holds, fields of their own, Run, and the
// way back to where it is edited.

import { h } from "../dom.js";
import { decideBody } from "./decide_request.js";
import { choice, FormError } from "./fields.js";
import { rankBody } from "./rank_request.js";
import { plural } from "./runner.js";
import { scoreBody } from "./score_request.js";

const SOURCES = {
  score: { title: "Score", body: scoreBody, size: (body) => plural(body.items.length, "item") },
  rank: { title: "Rank", body: rankBody, size: (body) => plural(body.documents.length, "document") },
  decide: { title: "Decide", body: decideBody, size: (body) => plural(body.questions.length, "question") },
};

export class RequestBar {
  // `run()` is called when the form is sent. `sources` are the views whose requests can be taken, `fields` more elements.
  constructor(page, runner, run, { sources = ["score"], fields = [] } = {}) {
    this.page = page;
    this.about = h("p", {}, "");
    this.source = choice(
      "Request in",
      sources.map((name) => [name, SOURCES[name].title]),
    );
    this.source.input.addEventListener("change", () => this.describe());
    this.edit = h("button", { type: "button", onclick: () => page.open(this.name) }, "");
    const submit = (event) => {
      event.preventDefault();
      run();
    };
    const shown = sources.length > 1 ? this.source.element : null;
    const row = h("div", { class: "row ends tools" }, shown, fields, runner.button, this.edit);
    this.element = h("form", { onsubmit: submit, novalidate: true }, this.about, row);
  }

  get name() {
    return this.source.input.value;
  }

  // Raises FormError where the form of the request's view is not complete.
  body() {
    return SOURCES[this.name].body(this.page.formOf(this.name));
  }

  describe() {
    const { title, size } = SOURCES[this.name];
    this.edit.textContent = `Edit it in ${title}`;
    try {
      this.about.textContent = `The request in ${title} has ${size(this.body())}.`;
    } catch (error) {
      if (!(error instanceof FormError)) throw error;
      this.about.textContent = `The request in ${title} is not complete: ${error.message}`;
    }
  }
}
