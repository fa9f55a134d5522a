// The questions of Decide in a form: a card per question, with its type, its words and its options.

import { h } from "../dom.js";
import { choice, textArea, textInput } from "./fields.js";
import { plural } from "./runner.js";

const TYPES = [
  ["predicate", "yes or no"],
  ["choice", "one of several"],
  ["score", "a level"],
];

export class QuestionList {
  constructor(page) {
    this.page = page;
    this.cards = [];
    this.list = h("div", {});
    const add = h(
      "button",
      {
        type: "button",
        class: "small",
        onclick: () => this.add({ type: "predicate", instructions: "", options: "" }, true),
      },
      "Add a question",
    );
    this.element = h("div", { class: "questions" }, this.list, h("p", {}, add));
  }

  add(question, focus = false) {
    const card = this.makeCard(question);
    this.cards.push(card);
    this.list.append(card.element);
    this.number();
    if (focus) card.instructions.input.focus();
  }

  makeCard(question) {
    const type = choice("Answer", TYPES),
      instructions = textInput("Question");
    const options = textArea("Options, one per line", { rows: 3, hint: "" });
    type.input.value = question.type;
    instructions.input.value = question.instructions;
    options.input.value = question.options;
    const legend = h("legend", {}, "");
    const remove = h("button", { type: "button", class: "small", onclick: () => this.remove(card) }, "Remove");
    const element = h(
      "fieldset",
      {},
      legend,
      instructions.element,
      h("div", { class: "row ends" }, type.element, remove),
      options.element,
    );
    const card = { element, legend, type, instructions, options, remove };
    const adapt = () => {
      options.element.hidden = type.input.value === "predicate";
      options.hint.textContent = type.input.value === "score" ? "Levels from the lowest to the highest." : "";
    };
    type.input.addEventListener("change", adapt);
    adapt();
    return card;
  }

  remove(card) {
    const at = this.cards.indexOf(card);
    this.cards.splice(at, 1);
    card.element.remove();
    this.number();
    this.page.announce(`The question was removed; ${plural(this.cards.length, "question")} left.`);
    (this.cards[Math.min(at, this.cards.length - 1)]?.remove ?? this.element.querySelector("p > button")).focus();
  }

  number() {
    for (const [at, card] of this.cards.entries()) {
      card.legend.textContent = `Question ${at + 1}`;
      card.remove.setAttribute("aria-label", `Remove question ${at + 1}`);
    }
  }

  state() {
    return this.cards.map(({ type, instructions, options }) => ({
      type: type.input.value,
      instructions: instructions.input.value,
      options: options.input.value,
    }));
  }

  restore(questions) {
    this.cards = [];
    this.list.replaceChildren();
    for (const question of questions) this.add(question);
  }

  markWrong(error) {
    for (const card of this.cards) card.element.classList.remove("wrong");
    const at = /^question-(\d+)$/.exec(error?.field ?? "")?.[1];
    if (at === undefined) return;
    this.cards[Number(at)].element.classList.add("wrong");
    this.cards[Number(at)].instructions.input.focus();
  }
}
