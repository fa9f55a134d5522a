// The view Decide: typed questions about one state, answered with a probability per option in one pass.

import { answered, decisionCsv, grid } from "../answers.js";
import { copyButtons, curl, python, toClipboard } from "../copy.js";
import { h } from "../dom.js";
import { checkBox, FormError, markWrong, submitOnCtrlEnter, numberInput, textArea } from "../fields.js";
import { lines } from "../items.js";
import { PRESETS } from "../presets.js";
import { QuestionList } from "../questions.js";
import { registerView } from "../registry.js";
import { plural, resultLine, Runner } from "../runner.js";

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
