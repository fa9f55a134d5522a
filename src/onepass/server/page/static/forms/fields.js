// Form fields with a label, a hint and a place for what is wrong with them.

import { h, newId } from "../dom.js";

// A mistake in the form, found before anything is sent. `field` is the key of the field in its form.
export class FormError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

export function textArea(label, { rows = 4, hint = null } = {}) {
  const input = h("textarea", { id: newId("text"), rows: String(rows), spellcheck: "false" });
  return labelled(label, input, hint);
}

export function textInput(label, { hint = null } = {}) {
  return labelled(label, h("input", { id: newId("input"), type: "text", spellcheck: "false" }), hint);
}

export function numberInput(label, { min, max, step = "any", value, hint = null }) {
  const attributes = { id: newId("number"), type: "number", min, max, step, value: String(value) };
  return labelled(label, h("input", attributes), hint);
}

// options: [[value, text], …]
export function choice(label, options, { hint = null } = {}) {
  const input = h(
    "select",
    { id: newId("choice") },
    options.map(([value, text]) => h("option", { value }, text)),
  );
  for (const [index, [value]] of options.entries()) input.options[index].value = value;
  return labelled(label, input, hint);
}

export function checkBox(label) {
  const input = h("input", { id: newId("check"), type: "checkbox" });
  return { element: h("div", { class: "check" }, input, h("label", { for: input.id }, label)), input };
}

function labelled(label, input, hint) {
  const hintId = newId("hint");
  const shown = h("p", { class: "hint", id: hintId }, hint ?? "");
  if (hint !== null) input.setAttribute("aria-describedby", hintId);
  const element = h(
    "div",
    { class: "field" },
    h("label", { for: input.id }, label),
    input,
    hint === null ? null : shown,
  );
  return { element, input, hint: shown };
}

// Marks the field that is wrong and puts the keyboard there. `fields` maps keys to what the functions above return.
export function markWrong(fields, error) {
  for (const field of Object.values(fields)) field.input?.removeAttribute("aria-invalid");
  const field = error && fields[error.field];
  if (!field) return;
  field.input.setAttribute("aria-invalid", "true");
  field.input.focus();
}

// Lets a person drop a file on a text area, or choose one. `loaded(text, name)` gets its content.
export function fileInto(field, loaded) {
  const read = async (file) => {
    if (file) loaded(await file.text(), file.name);
  };
  const picker = h("input", {
    type: "file",
    id: newId("file"),
    class: "unseen",
    tabindex: "-1",
    accept: ".txt,.csv,.tsv,.json,.jsonl",
  });
  picker.setAttribute("aria-label", "A file with items");
  picker.addEventListener("change", () => read(picker.files[0]).then(() => (picker.value = "")));
  field.input.addEventListener("dragover", (event) => {
    event.preventDefault();
    field.input.classList.add("over");
  });
  field.input.addEventListener("dragleave", () => field.input.classList.remove("over"));
  field.input.addEventListener("drop", (event) => {
    field.input.classList.remove("over");
    if (event.dataTransfer.files.length === 0) return;
    event.preventDefault();
    read(event.dataTransfer.files[0]);
  });
  const button = h("button", { type: "button", class: "small", onclick: () => picker.click() }, "Choose a file…");
  return [button, picker];
}

// Ctrl+Enter, or Command+Enter, in any field of a form.
export function submitOnCtrlEnter(event) {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  event.currentTarget.requestSubmit();
}
