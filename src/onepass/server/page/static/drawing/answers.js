// Answers to typed questions: bars per option, a grid of candidates by questions, and both as CSV.

import { h } from "../dom.js";
import { visible } from "../forms/items.js";
import { csv } from "../requests/copy.js";
import { LOW_MASS, number } from "./heat_map.js";
import { VirtualTable } from "./table.js";

// An option as the question names it; a predicate's are true and false.
function optionName(value) {
  return value === true ? "Yes" : value === false ? "No" : String(value);
}

export function answered(question, answer) {
  const best = Math.max(...answer.probabilities.map((option) => option.probability));
  const bars = answer.probabilities.map(({ value, probability }) => {
    const fill = h("div", { class: "fill", style: { width: `${100 * probability}%` } });
    return [
      h("dt", { class: probability === best ? "best" : "" }, visible(optionName(value), 60)),
      h(
        "dd",
        {},
        h("div", { class: "bar", "aria-hidden": "true" }, fill),
        h("span", { class: "number" }, number(probability)),
      ),
    ];
  });
  const facts = [
    answer.type === "score" ? `expected level ${answer.score.toFixed(2)}, counted from 0` : null,
    `confidence ${answer.confidence.toFixed(2)}`,
    `label mass ${answer.label_mass.toFixed(2)}`,
    answer.spread === undefined ? null : `spread over orders ${answer.spread.toFixed(4)}`,
  ].filter(Boolean);
  return h(
    "section",
    { class: "answer" },
    h("h3", {}, question.instructions),
    h("dl", { class: "bars" }, bars),
    h("p", { class: "dim hint" }, facts.join(" · ")),
  );
}

export function grid(body, value) {
  const rows = body.candidates.map((candidate, index) => ({ index, candidate, answers: value.answers[index] }));
  const table = new VirtualTable("Answers per candidate", [
    { title: "#", width: 3.6, number: true, value: (row) => -row.index, cell: (row) => String(row.index + 1) },
    {
      title: "Candidate",
      width: 16,
      value: (row) => row.candidate,
      cell: (row) => h("td", { class: "text item" }, visible(row.candidate, 200)),
    },
    ...body.questions.map((question, at) => ({
      title: visible(question.instructions, 30),
      width: 10,
      number: true,
      value: (row) => leading(row.answers[at]).probability,
      cell: (row) => gridCell(row.answers[at]),
    })),
  ]);
  table.element.classList.add("heatmap");
  table.setRows(rows);
  return table;
}

// Of a predicate yes, whatever it is; else the likeliest option.
function leading(answer) {
  if (answer.type === "predicate") return answer.probabilities[0];
  return answer.probabilities.reduce((a, b) => (b.probability > a.probability ? b : a));
}

function gridCell(answer) {
  const { value, probability } = leading(answer);
  const hatched = answer.label_mass < LOW_MASS ? " hatched" : "";
  return h(
    "td",
    { class: `number heat${hatched}`, style: { "--share": String(probability) } },
    `${visible(optionName(value), 16)} ${number(probability)}`,
  );
}

export function decisionCsv(body, value) {
  const rows = [["candidate", "question", "option", "probability", "label_mass"]];
  const all = body.candidates ? value.answers : [value.answers];
  all.forEach((answers, index) =>
    answers.forEach((answer, at) =>
      answer.probabilities.forEach((option) =>
        rows.push([
          body.candidates?.[index] ?? "",
          body.questions[at].instructions,
          option.value,
          option.probability,
          answer.label_mass,
        ]),
      ),
    ),
  );
  return csv(rows);
}
