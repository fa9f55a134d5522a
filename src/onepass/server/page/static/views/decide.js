// The view Decide: typed questions about one state, answered with a probability per option in one pass.

import { copyButtons, csv, curl, python, toClipboard } from "../copy.js";
import { h } from "../dom.js";
import { checkBox, FormError, markWrong, submitOnCtrlEnter, numberInput, textArea } from "../fields.js";
import { number } from "../heat_map.js";
import { lines, visible } from "../items.js";
import { PRESETS } from "../presets.js";
import { QuestionList } from "../questions.js";
import { registerView } from "../registry.js";
import { plural, resultLine, Runner } from "../runner.js";
import { VirtualTable } from "../table.js";

const PATH = "/v1/decisions";

registerView({
  name: "decide",
  title: "Decide",
  order: 30,
  summary: "Typed questions about one state: yes or no, one of several, a level. One token is read per question.",
  create: (page) => new DecideView(page),
});

class DecideView {
  constructor(page) {
    this.page = page;
    this.runner = new Runner(page, "decide");
    this.results = h(
      "section",
      { "aria-label": "Results" },
      h("p", { class: "dim empty" }, "Results appear here. Ctrl+Enter runs, too."),
    );
    this.questions = new QuestionList(page);
    this.fields = {
      state: textArea("State", { rows: 4, hint: "What the questions are about." }),
      candidates: textArea("Candidates, one per line", {
        rows: 3,
        hint: "May be empty. Else every question is asked about each candidate.",
      }),
      permutations: numberInput("Orders of the options", {
        min: "1",
        max: "255",
        step: "1",
        value: 1,
        hint: "Averages over so many rotations.",
      }),
      calibrated: checkBox("Apply the model's calibration, if it has one"),
    };
    this.element = h(
      "div",
      { class: "split" },
      this.makeForm(),
      h("div", { class: "output" }, this.runner.notices, this.results),
    );
    this.restore(PRESETS.find((preset) => preset.view === "decide").state);
  }

  makeForm() {
    const { state, candidates, permutations, calibrated } = this.fields;
    const submit = (event) => {
      event.preventDefault();
      this.run();
    };
    const link = async () => {
      await toClipboard(await this.page.link("decide", this.state()));
      this.runner.say("good", "A link with this whole request is in the clipboard.");
    };
    const more = h(
      "details",
      {},
      h("summary", {}, "More options"),
      candidates.element,
      permutations.element,
      calibrated.element,
    );
    const actions = h(
      "div",
      { class: "row tools" },
      this.runner.button,
      h("button", { type: "button", onclick: link }, "Copy link"),
    );
    return h(
      "form",
      { class: "input", onsubmit: submit, novalidate: true, onkeydown: submitOnCtrlEnter },
      state.element,
      this.questions.element,
      more,
      actions,
    );
  }

  state() {
    const { state, candidates, permutations, calibrated } = this.fields;
    const form = { state: state.input.value, candidates: candidates.input.value, questions: this.questions.state() };
    return { ...form, permutations: permutations.input.value, calibrated: calibrated.input.checked };
  }

  restore(form) {
    const { state, candidates, permutations, calibrated } = this.fields;
    state.input.value = form.state ?? "";
    candidates.input.value = form.candidates ?? "";
    permutations.input.value = form.permutations ?? "1";
    calibrated.input.checked = form.calibrated !== false;
    this.questions.restore(form.questions ?? []);
  }

  body(form) {
    if (form.state.trim() === "") throw new FormError("state", "Give a state: what the questions are about.");
    const body = { state: form.state, questions: this.questions.body() };
    const candidates = lines(form.candidates),
      permutations = Number(form.permutations);
    if (candidates.length > 0) body.candidates = candidates;
    if (!Number.isInteger(permutations) || permutations < 1)
      throw new FormError("permutations", "Orders must be a whole number above 0.");
    if (permutations > 1) body.permutations = permutations;
    if (!form.calibrated) body.calibrated = false;
    return body;
  }

  run() {
    const form = this.state();
    return this.runner.run(
      async (send) => {
        const body = this.body(form);
        const answer = await send(PATH, body);
        this.show(body, answer);
        this.runner.remember(PATH, body, form, answer, `${plural(body.questions.length, "question")} answered`);
      },
      { wrong: (error) => (markWrong(this.fields, error), this.questions.markWrong(error)) },
    );
  }

  show(body, answer) {
    const { value } = answer,
      keyed = this.page.api.key !== "";
    const tools = copyButtons(this.page, {
      CSV: () => decisionCsv(body, value),
      JSON: () => JSON.stringify(value, null, 2),
      curl: () => curl(PATH, body, keyed),
      Python: () => python("decide", body, keyed),
    });
    const calibration = value.calibration
      ? `Calibrated with ${value.calibration}.`
      : "Not calibrated: the model's own probabilities.";
    const content = body.candidates
      ? [grid(body, value).element]
      : body.questions.map((question, at) => answered(question, value.answers[at]));
    this.results.replaceChildren(
      h(
        "p",
        { class: "result-line" },
        h("strong", {}, plural(body.questions.length, "question")),
        ` · ${plural(value.num_reads, "read")} · ${resultLine(answer)}`,
      ),
      h("p", { class: "dim hint" }, calibration),
      ...value.warnings.map((text) => h("p", { class: "notice warn" }, text)),
      tools,
      ...content,
    );
  }
}

// An option as the question names it; a predicate's are true and false.
function optionName(value) {
  return value === true ? "Yes" : value === false ? "No" : String(value);
}

function answered(question, answer) {
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

function grid(body, value) {
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
  const hatched = answer.label_mass < 0.5 ? " hatched" : "";
  return h(
    "td",
    { class: `number heat${hatched}`, style: { "--share": String(probability) } },
    `${visible(optionName(value), 16)} ${number(probability)}`,
  );
}

function decisionCsv(body, value) {
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
