// The view Decide: typed questions about one state, answered with a probability per option in one pass.

import { h } from "../dom.js";
import { answered, decisionCsv, grid } from "../drawing/answers.js";
import { decideBody } from "../forms/decide_request.js";
import { checkBox, numberInput, textArea } from "../forms/fields.js";
import { FormView } from "../forms/form_view.js";
import { QuestionList } from "../forms/questions.js";
import { plural, resultLine } from "../forms/runner.js";
import { registerView } from "../registry.js";
import { copyButtons, curl, python } from "../requests/copy.js";

const PATH = "/v1/decisions";

registerView({
  name: "decide",
  title: "Decide",
  order: 30,
  summary: "Typed questions about one state: yes or no, one of several, a level. One token is read per question.",
  create: (page) => new DecideView(page),
});

class DecideView extends FormView {
  constructor(page) {
    const summary = (body) => `${plural(body.questions.length, "question")} answered`;
    super(page, { name: "decide", path: PATH, body: decideBody, summary });
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
    const { state, candidates, permutations, calibrated } = this.fields;
    this.build([state.element, this.questions.element], [candidates.element, permutations.element, calibrated.element]);
  }

  state() {
    return { ...super.state(), questions: this.questions.state() };
  }

  restore(form) {
    super.restore({ state: "", candidates: "", permutations: "1", calibrated: true, ...form });
    this.questions.restore(form.questions ?? []);
  }

  markWrong(error) {
    super.markWrong(error);
    this.questions.markWrong(error);
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
