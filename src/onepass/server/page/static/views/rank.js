// The view Rank: a query and documents; the documents with the best first, and how the model was asked.

import { h } from "../dom.js";
import { number } from "../drawing/heat_map.js";
import { VirtualTable } from "../drawing/table.js";
import { choice, FormError, textArea, textInput } from "../forms/fields.js";
import { FormView } from "../forms/form_view.js";
import { FORMATS, parseItems, visible } from "../forms/items.js";
import { rankBody } from "../forms/rank_request.js";
import { plural, resultLine } from "../forms/runner.js";
import { registerView } from "../registry.js";
import { copyButtons, csv, curl, python } from "../requests/copy.js";

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

class RankView extends FormView {
  constructor(page) {
    const summary = (body) => `${plural(body.documents.length, "document")} ranked`;
    super(page, { name: "rank", path: PATH, body: rankBody, summary });
    this.fields = {
      query: textArea("Query", { rows: 2 }),
      documents: textArea("Documents", { rows: 10, hint: "" }),
      format: choice("Documents are", FORMATS),
      instruction: textInput("Instruction", { hint: "For models that were trained with one; may be empty." }),
      method: choice("Method", METHODS),
      top: textInput("How many results", { hint: "Empty: all of them." }),
    };
    const { query, documents, format, instruction, method, top } = this.fields;
    for (const field of [documents, format]) field.input.addEventListener("input", () => this.describe());
    this.addFileRow(documents, format);
    this.build([query.element, documents.element], [instruction.element, method.element, top.element]);
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

  async show(body, answer) {
    const info = await this.page.api.get("/info");
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
