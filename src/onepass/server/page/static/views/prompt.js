// The view Prompt: the exact tokens that the model is given for the request of Score, Rank or Decide, and the positions that
// are read.

import { h } from "../dom.js";
import { choice } from "../forms/fields.js";
import { visible } from "../forms/items.js";
import { RequestBar } from "../forms/request_bar.js";
import { plural, Runner } from "../forms/runner.js";
import { registerView } from "../registry.js";

const MAX_ITEMS = 50; // whose prompts are asked for
const MAX_CANDIDATES = 8; // each with every question
const MAX_SHOWN = 4000; // tokens of a strip
const SPECIAL = /^(<\|.*\|>|<\/?[a-z_|]+>|\[[A-Z]+\])$/;

registerView({
  name: "prompt",
  title: "Prompt",
  order: 40,
  summary: "A request's tokens as the model gets them: the shared part, the item after it, and where the answer is read.",
  create: (page) => new PromptView(page),
});

// The request that a prompt is asked with, cut to the first few, and what its items are called.
const REQUESTS = {
  score(body) {
    const few = { ...body, items: body.items.slice(0, MAX_ITEMS) };
    if (Array.isArray(body.continuations?.[0])) few.continuations = body.continuations.slice(0, MAX_ITEMS);
    return { path: "/v1/score", body: few, names: few.items.map(String), omitted: body.items.length - few.items.length };
  },
  rank(body) {
    const { top_n, ...rest } = body;
    const few = { ...rest, documents: body.documents.slice(0, MAX_ITEMS) };
    const omitted = body.documents.length - few.documents.length;
    return { path: "/v1/rerank", body: few, names: few.documents, omitted };
  },
  decide(body) {
    const few = body.candidates ? { ...body, candidates: body.candidates.slice(0, MAX_CANDIDATES) } : body;
    const omitted = (body.candidates?.length ?? 0) - (few.candidates?.length ?? 0);
    return { path: "/v1/decisions", body: few, names: null, omitted };
  },
};

class PromptView {
  constructor(page) {
    this.page = page;
    this.runner = new Runner(page, "prompt");
    this.bar = new RequestBar(page, this.runner, () => this.run(), { sources: ["score", "rank", "decide"] });
    this.texts = new Map(); // token id → its text
    this.strip = h("div", {});
    this.item = choice("Item", []);
    this.continuation = choice("Continuation", []);
    this.item.input.addEventListener("change", () => this.draw(true));
    this.continuation.input.addEventListener("change", () => this.draw());
    this.pickers = h("div", { class: "row", hidden: true }, this.item.element, this.continuation.element);
    this.omitted = h("p", { class: "dim" }, "");
    this.element = h("div", {}, this.bar.element, this.runner.notices, this.pickers, this.omitted, this.strip);
  }

  opened() {
    this.bar.describe();
  }

  run() {
    return this.runner.run(async (send) => {
      const request = REQUESTS[this.bar.name](this.bar.body());
      const { value } = await send(request.path, { ...request.body, return_prompt: true });
      this.prompt = value.prompt;
      const parts = this.prompt.items.flatMap((item) => [item, ...(item.continuations ?? [])]);
      await this.name(
        send,
        [this.prompt.shared, ...parts].flatMap((part) => part.token_ids),
      );
      const names = request.names ?? this.prompt.items.map((item) => readName(request.body, item));
      fill(this.item.input, names);
      this.omitted.textContent = request.omitted > 0 ? `The prompts of ${request.omitted} more are not shown.` : "";
      this.pickers.hidden = false;
      this.draw(true);
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

  draw(otherItem = false) {
    const { shared, items } = this.prompt,
      index = Number(this.item.input.value),
      item = items[index],
      continuations = item.continuations ?? [];
    if (otherItem) fill(this.continuation.input, continuations.map((part) => part.text));
    this.continuation.element.hidden = continuations.length < 2;
    const after = continuations[Number(this.continuation.input.value || 0)] ?? { token_ids: [], text: "" };
    const count = shared.token_ids.length,
      end = count + item.token_ids.length;
    // A continuation is read token by token, each at the token before it.
    const first = item.readout_position,
      last = first + Math.max(0, after.token_ids.length - 1);
    const tokens = [...shared.token_ids, ...item.token_ids, ...after.token_ids];
    const begin = Math.max(0, Math.min(count - MAX_SHOWN / 2, tokens.length - MAX_SHOWN));
    const kind = (at) => (at < count ? "shared" : at < end ? "item" : "continuation");
    const reads = (at) => (at < first || at > last ? "" : at === last ? "read last" : "read");
    const shown = tokens.slice(begin).map((id, at) => this.token(id, begin + at, kind(begin + at), reads(begin + at)));
    const read =
      after.token_ids.length > 0
        ? `the continuation's probability is read at tokens ${first + 1} to ${last + 1}`
        : `labels are read after token ${first + 1}${item.labels ? `: ${item.labels.map((label) => visible(label)).join(" ")}` : ""}`;
    const legend = h(
      "p",
      { class: "legend" },
      key("shared", `shared: ${plural(count, "token")}`),
      key("item", `item ${index + 1}: ${plural(item.token_ids.length, "token")}`),
      after.token_ids.length > 0
        ? key("continuation", `continuation: ${plural(after.token_ids.length, "token")}`)
        : null,
      key("special", "special token"),
      key("read", read),
    );
    this.strip.replaceChildren(
      legend,
      begin > 0 ? h("p", { class: "dim" }, `The first ${plural(begin, "token")} are not shown.`) : "",
      h("ol", { class: "strip", start: String(begin + 1), "aria-label": "Tokens in order" }, shown),
      h("h3", {}, "As text"),
      h(
        "pre",
        { tabindex: "0", "aria-label": "The prompt as text" },
        shared.text.slice(-20000),
        h("mark", { class: "item" }, item.text.slice(0, 20000)),
        after.text ? h("mark", { class: "continuation" }, after.text.slice(0, 20000)) : null,
      ),
    );
  }

  token(id, at, kind, read) {
    const text = this.texts.get(id) ?? "";
    const classes = ["token", kind, SPECIAL.test(text) ? "special" : "", read];
    return h(
      "li",
      { class: classes.filter(Boolean).join(" "), title: `token ${at + 1}, id ${id}, ${kind}` },
      shownToken(text),
      read ? h("span", { class: "unseen" }, " (read here)") : null,
    );
  }
}

// "Is this urgent?", "a candidate · Is this urgent?": a question may be read several times, in other orders of its options.
function readName(body, item) {
  const question = body.questions[item.question].instructions;
  return item.candidate === undefined ? question : `${body.candidates[item.candidate]} · ${question}`;
}

function fill(select, names) {
  const options = names.map((name, index) => h("option", {}, `${index + 1}: ${visible(name, 60)}`));
  options.forEach((option, index) => (option.value = String(index)));
  select.replaceChildren(...options);
}

function shownToken(text) {
  return text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
}

function key(kind, text) {
  return h("span", {}, h("span", { class: `swatch token ${kind}`, "aria-hidden": "true" }), ` ${text}`);
}
