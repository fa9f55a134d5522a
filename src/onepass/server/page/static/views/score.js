// The view Score: a context, items and labels; probabilities as a heat map.

import { copyButtons, csv, curl, python, toClipboard } from "../copy.js";
import { h } from "../dom.js";
import {
  checkBox,
  choice,
  fileInto,
  FormError,
  markWrong,
  submitOnCtrlEnter,
  numberInput,
  textArea,
} from "../fields.js";
import { heatMap, legend } from "../heat_map.js";
import { FORMATS, formatOfFile, lines, parseItems, visible } from "../items.js";
import { PRESETS } from "../presets.js";
import { registerView } from "../registry.js";
import { plural, resultLine, Runner } from "../runner.js";
import { columnNames, EMPTY, scoreBody, scoreRows } from "../score_request.js";

const PATH = "/v1/score";
const MODES = [
  ["auto", "auto: the server decides"],
  ["packed", "packed: context and items in one step"],
  ["extend", "extend: items after a kept context"],
  ["chunked", "chunked: the context again for every few items"],
  ["serial", "serial: one item at a time"],
];
const MAX_CHIPS = 24;

registerView({
  name: "score",
  title: "Score",
  order: 10,
  summary: "How probable is each label after the context and an item? All items are scored in one pass.",
  create: (page) => new ScoreView(page),
});

class ScoreView {
  constructor(page) {
    this.page = page;
    this.runner = new Runner(page, "score");
    this.results = h(
      "section",
      { "aria-label": "Results" },
      h("p", { class: "dim empty" }, "Results appear here. Ctrl+Enter runs, too."),
    );
    this.fields = this.makeFields();
    this.element = h(
      "div",
      { class: "split" },
      this.makeForm(),
      h("div", { class: "output" }, this.runner.notices, this.results),
    );
    this.restore(PRESETS[0].state);
  }

  makeFields() {
    const fields = {
      context: textArea("Context", {
        rows: 5,
        hint: "Computed once and shared. Texts are joined as they are: mind the spaces.",
      }),
      chat: checkBox("The context is a chat message in the model's template; {item} is where the item stands"),
      items: textArea("Items", { rows: 8, hint: "" }),
      format: choice("Items are", FORMATS),
      read: choice("Read", [
        ["labels", "labels: single tokens"],
        ["continuations", "continuations: texts of any length"],
      ]),
      labels: textArea("Labels, one per line", { rows: 3, hint: "" }),
      softmax: checkBox("Softmax over the labels alone (else probabilities in the whole vocabulary)"),
      temperature: numberInput("Temperature", { min: "0", step: "any", value: 1 }),
      itemFirst: checkBox("The item stands before the context"),
      mode: choice("Mode", MODES),
    };
    fields.items.input.addEventListener("input", () => this.describe());
    fields.labels.input.addEventListener("input", () => this.describe());
    for (const name of ["format", "read", "softmax"])
      fields[name].input.addEventListener("change", () => this.describe());
    return fields;
  }

  makeForm() {
    const { context, chat, items, format, read, labels, softmax, temperature, itemFirst, mode } = this.fields;
    this.chips = h("ul", { class: "chips", "aria-label": "The labels as they are sent" });
    labels.element.append(this.chips);
    const files = fileInto(items, (text, name) => {
      items.input.value = text;
      format.input.value = formatOfFile(name);
      this.describe();
      this.page.announce(`${name} was read.`);
    });
    items.element.append(h("div", { class: "row files" }, format.element, files));
    const submit = (event) => {
      event.preventDefault();
      this.run();
    };
    const more = h(
      "details",
      {},
      h("summary", {}, "More options"),
      softmax.element,
      itemFirst.element,
      h("div", { class: "row" }, temperature.element, mode.element),
    );
    const link = h("button", { type: "button", onclick: () => this.copyLink() }, "Copy link");
    const actions = h("div", { class: "row tools" }, this.runner.button, link);
    return h(
      "form",
      { class: "input", onsubmit: submit, novalidate: true, onkeydown: submitOnCtrlEnter },
      context.element,
      chat.element,
      items.element,
      h("div", { class: "reads" }, read.element, labels.element),
      more,
      actions,
    );
  }

  state() {
    const state = {};
    for (const [name, { input }] of Object.entries(this.fields))
      state[name] = input.type === "checkbox" ? input.checked : input.value;
    return state;
  }

  restore(state) {
    for (const [name, value] of Object.entries({ ...EMPTY, ...state })) {
      const input = this.fields[name]?.input;
      if (!input) continue;
      if (input.type === "checkbox") input.checked = value === true;
      else input.value = String(value);
    }
    this.describe();
  }

  // Says what the form holds: how many items, and the labels with their spaces.
  describe() {
    const { items, labels, read, format } = this.fields;
    let text,
      own = false;
    try {
      const parsed = parseItems(items.input.value, format.input.value);
      own = parsed.options !== null;
      const kind = { lines: "one per line", csv: "from CSV", json: "from JSON" }[parsed.format];
      text = `${plural(parsed.texts.length, "item")}, ${kind}. Drop a file here, or paste lines, CSV or JSON.`;
    } catch (error) {
      if (!(error instanceof FormError)) throw error;
      text = error.message;
    }
    items.hint.textContent = text;
    labels.input.disabled = own;
    const given = own ? [] : lines(labels.input.value);
    labels.hint.textContent = own
      ? "The items have options of their own."
      : read.input.value === "labels"
        ? "Most models want a space before a word; it is shown as ␣."
        : "Their log-probability is read.";
    const chips = given.slice(0, MAX_CHIPS).map((label) => h("li", { class: "chip" }, visible(label, 40)));
    this.chips.replaceChildren(
      ...chips,
      given.length > MAX_CHIPS ? h("li", { class: "dim" }, `and ${given.length - MAX_CHIPS} more`) : "",
    );
  }

  run() {
    const state = this.state();
    return this.runner.run(
      async (send) => {
        const body = scoreBody(state);
        const answer = await send(PATH, body);
        this.show(body, answer);
        this.runner.remember(PATH, body, state, answer, `${plural(body.items.length, "item")} scored`);
      },
      { wrong: (error) => markWrong(this.fields, error) },
    );
  }

  show(body, answer) {
    const rows = scoreRows(body, answer.value),
      names = columnNames(body);
    const likelihoods = Boolean(answer.value.continuations);
    const map = heatMap(rows, names, { likelihoods });
    const tools = copyButtons(this.page, {
      CSV: () => scoreCsv(rows, names),
      JSON: () => JSON.stringify(answer.value, null, 2),
      curl: () => curl(PATH, body, this.page.api.key !== ""),
      Python: () => python("score", body, this.page.api.key !== ""),
    });
    this.results.replaceChildren(
      h("p", { class: "result-line" }, h("strong", {}, plural(rows.length, "item")), ` · ${resultLine(answer)}`),
      answer.value.reason ? h("p", { class: "dim hint" }, answer.value.reason) : "",
      tools,
      likelihoods
        ? h(
            "p",
            { class: "dim legend" },
            "Numbers are log-probabilities; the colour is the share among the item's options.",
          )
        : legend(),
      map.element,
    );
    map.draw();
  }

  async copyLink() {
    await toClipboard(await this.page.link("score", this.state()));
    this.page.announce("A link with this request was copied.");
    this.runner.say(
      "good",
      "A link with this whole request is in the clipboard. The request is in the link's fragment, which no server sees; the API key is not in it.",
    );
  }
}

function scoreCsv(rows, names) {
  const masses = rows.some((row) => row.mass !== null);
  const head = ["index", "item", ...names, ...(masses ? ["label_mass"] : [])];
  return csv([
    head,
    ...rows.map((row) => [row.index, row.item, ...names.map((_, at) => row.values[at]), ...(masses ? [row.mass] : [])]),
  ]);
}
