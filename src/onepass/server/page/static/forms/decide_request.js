// The form of Decide as a request of /v1/decisions.

import { FormError } from "./fields.js";
import { lines } from "./items.js";

export function decideBody(form) {
  if (form.state.trim() === "") throw new FormError("state", "Give a state: what the questions are about.");
  const body = { state: form.state, questions: questionBodies(form.questions) };
  const candidates = lines(form.candidates),
    permutations = Number(form.permutations);
  if (candidates.length > 0) body.candidates = candidates;
  if (!Number.isInteger(permutations) || permutations < 1)
    throw new FormError("permutations", "Orders must be a whole number above 0.");
  if (permutations > 1) body.permutations = permutations;
  if (!form.calibrated) body.calibrated = false;
  return body;
}

function questionBodies(questions) {
  if (questions.length === 0) throw new FormError("questions", "Add at least one question.");
  return questions.map(({ type, instructions, options }, at) => {
    if (instructions.trim() === "") throw new FormError(`question-${at}`, `Question ${at + 1} has no words.`);
    if (type === "predicate") return { type, instructions };
    const values = lines(options).map((line) => line.trim());
    if (values.length < 2) throw new FormError(`question-${at}`, `Question ${at + 1} needs at least two options.`);
    return { type, instructions, [type === "choice" ? "choices" : "levels"]: values };
  });
}
