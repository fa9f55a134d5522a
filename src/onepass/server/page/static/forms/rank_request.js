// The form of Rank as a request of /v1/rerank.

import { FormError } from "./fields.js";
import { parseItems } from "./items.js";

export function rankBody(state) {
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
