// The view Score: a context, items and labels; probabilities as a heat map.

import { h } from "../dom.js";
import { heatMap, legend } from "../drawing/heat_map.js";
import { checkBox, choice, FormError, numberInput, textArea } from "../forms/fields.js";
import { FormView } from "../forms/form_view.js";
import { FORMATS, lines, parseItems, visible } from "../forms/items.js";
import { plural, resultLine } from "../forms/runner.js";
import { columnNames, EMPTY, scoreBody, scoreRows } from "../forms/score_request.js";
import { registerView } from "../registry.js";
import { copyButtons, csv, curl, python } from "../requests/copy.js";

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

class ScoreView extends FormView {
  constructor(page) {
    const summary = (body) => `${plural(body.items.length, "item")} scored`;
    super(page, { name: "score", path: PATH, body: scoreBody, summary });
    this.fields = this.makeFields();
    const { context, chat, items, format, read, labels, softmax, temperature, itemFirst, mode } = this.fields;
    this.chips = h("ul", { class: "chips", "aria-label": "The labels as they are sent" });
    labels.element.append(this.chips);
    this.addFileRow(items, format);
    const reads = h("div", { class: "reads" }, read.element, labels.element);
    this.build(
      [context.element, chat.element, items.element, reads],
      [softmax.element, itemFirst.element, h("div", { class: "row" }, temperature.element, mode.element)],
    );
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

  restore(state) {
    super.restore({ ...EMPTY, ...state });
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
}

function scoreCsv(rows, names) {
  const masses = rows.some((row) => row.mass !== null);
  const head = ["index", "item", ...names, ...(masses ? ["label_mass"] : [])];
  return csv([
    head,
    ...rows.map((row) => [row.index, row.item, ...names.map((_, at) => row.values[at]), ...(masses ? [row.mass] : [])]),
  ]);
}
