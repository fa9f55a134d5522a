// The view Rank: a query and documents; the documents with the best first, and how the model was asked.

import { copyButtons, csv, curl, python, toClipboard } from "../copy.js";
import { h } from "../dom.js";
import { choice, fileInto, FormError, markWrong, submitOnCtrlEnter, textArea, textInput } from "../fields.js";
import { number } from "../heat_map.js";
import { FORMATS, formatOfFile, parseItems, visible } from "../items.js";
import { PRESETS } from "../presets.js";
import { registerView } from "../registry.js";
import { plural, resultLine, Runner } from "../runner.js";
import { VirtualTable } from "../table.js";

const PATH = "/v1/rerank";
const METHODS = [
  ["auto", "as the model was made to"],
  ["label", "label: yes against no"],
  ["likelihood", "likelihood of the query after the document"],
];

registerView({
  name: "rank",
  title: "Rank",
  order: 20,
  summary: "Which documents answer the query best? The words come from the model's own template.",
  create: (page) => new RankView(page),
});

class RankView {
  constructor(page) {
    this.page = page;
    this.runner = new Runner(page, "rank");
    this.results = h(
      "section",
      { "aria-label": "Results" },
      h("p", { class: "dim empty" }, "Results appear here. Ctrl+Enter runs, too."),
    );
    this.fields = {
      query: textArea("Query", { rows: 2 }),
      documents: textArea("Documents", { rows: 10, hint: "" }),
      format: choice("Documents are", FORMATS),
      instruction: textInput("Instruction", { hint: "For models that were trained with one; may be empty." }),
      method: choice("Method", METHODS),
      top: textInput("How many results", { hint: "Empty: all of them." }),
    };
    for (const name of ["documents", "format"])
      this.fields[name].input.addEventListener("input", () => this.describe());
    this.element = h(
      "div",
      { class: "split" },
      this.makeForm(),
      h("div", { class: "output" }, this.runner.notices, this.results),
    );
    this.restore(PRESETS.find((preset) => preset.view === "rank").state);
  }

  makeForm() {
    const { query, documents, format, instruction, method, top } = this.fields;
    const files = fileInto(documents, (text, name) => {
      documents.input.value = text;
      format.input.value = formatOfFile(name);
      this.describe();
      this.page.announce(`${name} was read.`);
    });
    documents.element.append(h("div", { class: "row files" }, format.element, files));
    const submit = (event) => {
      event.preventDefault();
      this.run();
    };
    const link = async () => {
      await toClipboard(await this.page.link("rank", this.state()));
      this.runner.say("good", "A link with this whole request is in the clipboard.");
    };
    const more = h("details", {}, h("summary", {}, "More options"), instruction.element, method.element, top.element);
    const actions = h(
      "div",
      { class: "row tools" },
      this.runner.button,
      h("button", { type: "button", onclick: link }, "Copy link"),
    );
    return h(
      "form",
      { class: "input", onsubmit: submit, novalidate: true, onkeydown: submitOnCtrlEnter },
      query.element,
      documents.element,
      more,
      actions,
    );
  }

  state() {
    return Object.fromEntries(Object.entries(this.fields).map(([name, { input }]) => [name, input.value]));
  }

  restore(state) {
    for (const [name, { input }] of Object.entries(this.fields))
      if (state[name] !== undefined) input.value = String(state[name]);
    this.describe();
  }

  describe() {
    const { documents, format } = this.fields;
    try {
      const { texts } = parseItems(documents.input.value, format.input.value, "documents");
      documents.hint.textContent = `${plural(texts.length, "document")}. Drop a file here, or paste lines, CSV or JSON.`;
    } catch (error) {
      if (!(error instanceof FormError)) throw error;
      documents.hint.textContent = error.message;
    }
  }

  body(state) {
    const documents = parseItems(state.documents, state.format, "documents").texts;
    if (state.query.trim() === "") throw new FormError("query", "Give a query.");
    if (documents.length === 0) throw new FormError("documents", "Give at least one document.");
    const body = { query: state.query, documents, return_documents: false };
    if (state.instruction.trim() !== "") body.instruction = state.instruction;
    if (state.method !== "auto") body.method = state.method;
    if (state.top.trim() !== "") {
      if (!/^[1-9]\d*$/.test(state.top.trim()))
        throw new FormError("top", "How many results must be a whole number above 0.");
      body.top_n = Number(state.top);
    }
    return body;
  }

  run() {
    const state = this.state();
    return this.runner.run(
      async (send) => {
        const body = this.body(state);
        const answer = await send(PATH, body);
        const info = await this.page.api.get("/info");
        this.show(body, answer, info);
        this.runner.remember(PATH, body, state, answer, `${plural(body.documents.length, "document")} ranked`);
      },
      { wrong: (error) => markWrong(this.fields, error) },
    );
  }

  show(body, answer, info) {
    const rows = answer.value.results.map((result, place) => ({
      place,
      ...result,
      text: body.documents[result.index],
    }));
    const keyed = this.page.api.key !== "";
    const tools = copyButtons(this.page, {
      CSV: () =>
        csv([
          ["rank", "index", "relevance_score", "document"],
          ...rows.map((row) => [row.place + 1, row.index, row.relevance_score, row.text]),
        ]),
      JSON: () => JSON.stringify(answer.value, null, 2),
      curl: () => curl(PATH, body, keyed),
      Python: () => python("rank", rankCall(body), keyed),
    });
    const table = rankTable(rows);
    const cut = rows.filter((row) => row.truncated).length;
    this.results.replaceChildren(
      h(
        "p",
        { class: "result-line" },
        h("strong", {}, plural(body.documents.length, "document")),
        ` · ${resultLine(answer)}`,
      ),
      cut > 0 ? h("p", { class: "notice warn" }, `${plural(cut, "document")} had to be cut.`) : "",
      tools,
      table.element,
      asked(body, info),
    );
    table.draw();
  }
}

// The client calls what is returned `top`, and gives documents in any case.
function rankCall(body) {
  const { query, documents, instruction, method, top_n: top } = body;
  return Object.fromEntries(
    Object.entries({ query, documents, instruction, method, top }).filter(([, value]) => value !== undefined),
  );
}

function rankTable(rows) {
  const scores = rows.map((row) => row.relevance_score);
  const largest = Math.max(...scores),
    smallest = Math.min(...scores, 0);
  const share = (score) => (largest === smallest ? 1 : (score - smallest) / (Math.max(largest, 1e-12) - smallest));
  const bar = (row) => {
    const fill = h("span", { class: "fill", style: { width: `${100 * share(row.relevance_score)}%` } });
    return h(
      "td",
      { class: "number ranked" },
      h("span", { class: "bar", "aria-hidden": "true" }, fill),
      number(row.relevance_score),
    );
  };
  const table = new VirtualTable("Documents, best first", [
    { title: "Rank", width: 4, number: true, value: (row) => -row.place, cell: (row) => String(row.place + 1) },
    { title: "Score", width: 11, number: true, value: (row) => row.relevance_score, cell: bar },
    {
      title: "Document",
      width: 20,
      value: (row) => row.text,
      cell: (row) => h("td", { class: "text item", title: row.text.slice(0, 2000) }, visible(row.text, 300)),
    },
    { title: "Given as", width: 6, number: true, value: (row) => -row.index, cell: (row) => `no. ${row.index + 1}` },
  ]);
  table.setRows(rows);
  return table;
}

function asked(body, info) {
  const ranker = info.details.ranker;
  if (!ranker) return "";
  const method = body.method ?? ranker.method,
    template = ranker[method];
  const parts = [
    ["Context", template.context],
    ["After it, per document", template.item],
    ["Its likelihood is read", template.continuation],
  ];
  const shown = parts
    .filter(([, text]) => text)
    .map(([name, text]) => [h("dt", {}, name), h("dd", {}, h("pre", {}, text))]);
  const labels = template.labels.map((label) => visible(label)).join("  ");
  const read = labels ? [h("dt", {}, "Labels that are read"), h("dd", {}, h("code", {}, labels))] : [];
  const words =
    method === "label"
      ? "by label: one answer against the other"
      : "by likelihood: how probable the query is after each document";
  return h(
    "details",
    { class: "asked" },
    h("summary", {}, `Ranked ${words}. Show the template`),
    h("dl", {}, shown, read),
  );
}
