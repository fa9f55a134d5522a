// A form beside its results, as Score, Rank and Decide have it: Run (or Ctrl+Enter), Copy link, what is wrong with a field,
// and the entry in the history. A view extends this and says what its fields, its request and its results are.

import { h } from "../dom.js";
import { toClipboard } from "../requests/copy.js";
import { fileInto, markWrong, submitOnCtrlEnter } from "./fields.js";
import { formatOfFile } from "./items.js";
import { PRESETS } from "./presets.js";
import { Runner } from "./runner.js";

// What a view gives: `fields` and `show(body, answer)`, where it has to `describe()`, and the constructor's `request`:
// {name, path, body(state), summary(body)}.
export class FormView {
  constructor(page, request) {
    this.page = page;
    this.request = request;
    this.runner = new Runner(page, request.name);
    this.results = h(
      "section",
      { "aria-label": "Results" },
      h("p", { class: "dim empty" }, "Results appear here. Ctrl+Enter runs, too."),
    );
  }

  // Called once, when the fields are there. `parts` are what the form shows, `more` what it hides under More options.
  build(parts, more) {
    const submit = (event) => {
      event.preventDefault();
      this.run();
    };
    const link = h("button", { type: "button", onclick: () => this.copyLink() }, "Copy link");
    const form = h(
      "form",
      { class: "input", onsubmit: submit, novalidate: true, onkeydown: submitOnCtrlEnter },
      parts,
      h("details", {}, h("summary", {}, "More options"), more),
      h("div", { class: "row tools" }, this.runner.button, link),
    );
    const output = h("div", { class: "output" }, this.runner.notices, this.results);
    this.element = h("div", { class: "split" }, form, output);
    this.restore(PRESETS.find((preset) => preset.view === this.request.name).state);
  }

  state() {
    const state = {};
    for (const [name, { input }] of Object.entries(this.fields))
      state[name] = input.type === "checkbox" ? input.checked : input.value;
    return state;
  }

  restore(state) {
    for (const [name, { input }] of Object.entries(this.fields)) {
      if (state[name] === undefined) continue;
      if (input.type === "checkbox") input.checked = state[name] === true;
      else input.value = String(state[name]);
    }
    this.describe();
  }

  // Says what the form holds.
  describe() {}

  markWrong(error) {
    markWrong(this.fields, error);
  }

  run() {
    const state = this.state(),
      { path, body: bodyOf, summary } = this.request;
    return this.runner.run(
      async (send) => {
        const body = bodyOf(state);
        const answer = await send(path, body);
        await this.show(body, answer);
        this.runner.remember(path, body, state, answer, summary(body));
      },
      { wrong: (error) => this.markWrong(error) },
    );
  }

  async copyLink() {
    await toClipboard(await this.page.link(this.request.name, this.state()));
    this.page.announce("A link with this request was copied.");
    this.runner.say(
      "good",
      "A link with this whole request is in the clipboard. The request is in the link's fragment, which no server sees; the API key is not in it.",
    );
  }

  // Below a field of texts: how they are written, and a file that takes their place.
  addFileRow(field, format) {
    const files = fileInto(field, (text, name) => {
      field.input.value = text;
      format.input.value = formatOfFile(name);
      this.describe();
      this.page.announce(`${name} was read.`);
    });
    field.element.append(h("div", { class: "row files" }, format.element, files));
  }
}
