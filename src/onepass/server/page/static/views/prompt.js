// The view Prompt: the exact tokens that the model is given for the request of Score, and the position that is read.

import { h } from "../dom.js";
import { choice } from "../fields.js";
import { visible } from "../items.js";
import { registerView } from "../registry.js";
import { plural, Runner } from "../runner.js";
import { scoreBody } from "../score_request.js";

const MAX_ITEMS = 50; // whose prompts are asked for
const MAX_SHOWN = 4000; // tokens of a strip
const SPECIAL = /^(<\|.*\|>|<\/?[a-z_|]+>|\[[A-Z]+\])$/;

registerView({
  name: "prompt",
  title: "Prompt",
  order: 40,
  summary:
    "The tokens of the request in Score as the model gets them: the shared part, the item after it, and where labels are read.",
  create: (page) => new PromptView(page),
});

class PromptView {
  constructor(page) {
    this.page = page;
    this.runner = new Runner(page, "prompt");
    this.texts = new Map(); // token id → its text
    this.strip = h("div", {});
    this.item = choice("Item", []);
    this.item.input.addEventListener("change", () => this.draw());
    this.item.element.hidden = true;
    const submit = (event) => {
      event.preventDefault();
      this.run();
    };
    this.about = h("p", {}, "");
    const edit = h("button", { type: "button", onclick: () => page.open("score") }, "Edit it in Score");
    const form = h(
      "form",
      { class: "tools-apart", onsubmit: submit },
      this.about,
      h("div", { class: "row tools" }, this.runner.button, edit),
    );
    this.element = h("div", {}, form, this.runner.notices, this.item.element, this.strip);
  }

  opened() {
    const state = this.page.formOf("score");
    try {
      const body = scoreBody(state);
      this.about.textContent = `The request in Score has ${plural(body.items.length, "item")}${body.items.length > MAX_ITEMS ? `; the prompts of the first ${MAX_ITEMS} are shown` : ""}.`;
    } catch (error) {
      this.about.textContent = `The request in Score is not complete: ${error.message}`;
    }
  }

  run() {
    return this.runner.run(async (send) => {
      const body = scoreBody(this.page.formOf("score"));
      const few = { ...body, items: body.items.slice(0, MAX_ITEMS), return_prompt: true };
      if (Array.isArray(body.continuations?.[0])) few.continuations = body.continuations.slice(0, MAX_ITEMS);
      const { value } = await send("/v1/score", few);
      this.prompt = value.prompt;
      await this.name(
        send,
        [this.prompt.shared, ...this.prompt.items].flatMap((part) => part.token_ids),
      );
      const options = few.items.map((item, index) =>
        h("option", { value: String(index) }, `${index + 1}: ${visible(String(item), 60)}`),
      );
      options.forEach((option, index) => (option.value = String(index)));
      this.item.input.replaceChildren(...options);
      this.item.element.hidden = false;
      this.draw();
      this.page.announce(`The prompt has ${plural(this.prompt.shared.token_ids.length, "shared token")}.`);
    });
  }

  // The text of each token that is not known yet, in one request.
  async name(send, ids) {
    const unknown = [...new Set(ids)].filter((id) => !this.texts.has(id));
    if (unknown.length === 0) return;
    const { value } = await send("/detokenize", { tokens: unknown.map((id) => [id]) });
    unknown.forEach((id, index) => this.texts.set(id, value.text[index]));
  }

  draw() {
    const index = Number(this.item.input.value),
      { shared, items } = this.prompt,
      item = items[index];
    const read = item.readout_position,
      count = shared.token_ids.length;
    const tokens = [...shared.token_ids, ...item.token_ids];
    const first = Math.max(0, Math.min(count - MAX_SHOWN / 2, tokens.length - MAX_SHOWN));
    const shown = tokens.slice(first).map((id, at) => this.token(id, first + at, count, read));
    const left = first > 0 ? h("p", { class: "dim" }, `The first ${plural(first, "token")} are not shown.`) : "";
    this.strip.replaceChildren(
      h(
        "p",
        { class: "legend" },
        key("shared", `shared: ${plural(count, "token")}`),
        key("item", `item ${index + 1}: ${plural(item.token_ids.length, "token")}`),
        key("special", "special token"),
        key("read", `labels are read after token ${read + 1}`),
      ),
      left,
      h("ol", { class: "strip", start: String(first + 1), "aria-label": "Tokens in order" }, shown),
      h("h3", {}, "As text"),
      h(
        "pre",
        { tabindex: "0", "aria-label": "The prompt as text" },
        shared.text.slice(-20000),
        h("mark", { class: "item" }, item.text.slice(0, 20000)),
      ),
    );
  }

  token(id, at, shared, read) {
    const text = this.texts.get(id) ?? "",
      special = SPECIAL.test(text);
    const classes = ["token", at < shared ? "shared" : "item", special ? "special" : "", at === read ? "read" : ""];
    const part = at < shared ? "shared" : "item";
    const said = at === read ? h("span", { class: "unseen" }, " (labels are read here)") : null;
    return h(
      "li",
      { class: classes.filter(Boolean).join(" "), title: `token ${at + 1}, id ${id}, ${part}` },
      shownToken(text),
      said,
    );
  }
}

function shownToken(text) {
  return text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}

function key(kind, text) {
  return h("span", {}, h("span", { class: `swatch token ${kind}`, "aria-hidden": "true" }), ` ${text}`);
}
