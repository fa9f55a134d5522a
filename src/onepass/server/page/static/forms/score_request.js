// The form of Score as a request of /v1/score. Prompt, Is it right? and other views send the same request with more members.

import { FormError } from "./fields.js";
import { lines, parseItems } from "./items.js";

// The form as plain JSON, with what an empty form has.
export const EMPTY = {
  context: "",
  chat: false,
  items: "",
  format: "auto",
  read: "labels",
  labels: "",
  softmax: true,
  temperature: "1",
  itemFirst: false,
  mode: "auto",
};

export function scoreBody(state) {
  const { texts, options } = parseItems(state.items, state.format);
  if (texts.length === 0) throw new FormError("items", "Give at least one item.");
  if (state.context.trim() === "") throw new FormError("context", "Give a context: the text that all items follow.");
  const body = state.chat ? { messages: [{ role: "user", content: state.context }] } : { query: state.context };
  Object.assign(body, { items: texts, ...wanted(state, options) });
  if (state.itemFirst && !state.chat) body.item_first = true;
  if (state.mode !== "auto") body.mode = state.mode;
  return body;
}

function wanted(state, options) {
  if (options !== null) return { continuations: options };
  const labels = lines(state.labels);
  if (labels.length === 0) throw new FormError("labels", "Give at least one label.");
  if (state.read === "continuations") return { continuations: labels };
  const out = { labels };
  if (state.softmax) out.apply_softmax = true;
  if (state.softmax && state.temperature !== "1") out.temperature = temperature(state.temperature);
  return out;
}

function temperature(text) {
  const value = Number(text);
  if (!(value > 0)) throw new FormError("temperature", "The temperature must be above 0.");
  return value;
}

// What the columns of the result are called: labels, or the texts whose likelihood is wanted.
export function columnNames(body) {
  if (body.labels) return body.labels;
  if (!Array.isArray(body.continuations[0])) return body.continuations;
  const count = Math.max(...body.continuations.map((row) => row.length));
  return Array.from({ length: count }, (_, index) => `option ${index + 1}`);
}

// One object per item: {index, item, values, shares, mass, best, options}. `values` are numbers as the server sent them: probabilities of
// labels, or log-probabilities of continuations; `shares`, from 0 to 1, are what is coloured.
export function scoreRows(body, response) {
  return body.items.map((item, index) => {
    const values = response.continuations
      ? response.continuations[index].map((one) => one.logprob)
      : response.scores[index];
    const shares = response.continuations ? softmax(values) : values;
    const own = Array.isArray(body.continuations?.[0]) ? body.continuations[index] : null;
    const mass = response.continuations ? null : (response.label_mass?.[index] ?? null);
    return { index, item, values, shares, mass, best: values.indexOf(Math.max(...values)), options: own };
  });
}

function softmax(values) {
  const largest = Math.max(...values);
  const weights = values.map((value) => Math.exp(value - largest));
  const sum = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / sum);
}
