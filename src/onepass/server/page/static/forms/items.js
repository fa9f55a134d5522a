// Items as a person gives them: a line each, CSV with a header, JSON, or JSON lines; typed, pasted or from a file.

import { FormError } from "./fields.js";

export const FORMATS = [
  ["auto", "as they look"],
  ["lines", "one per line"],
  ["csv", "CSV with a header"],
  ["json", "JSON or JSON lines"],
];
const TEXT_COLUMNS = ["text", "item", "document", "content", "body", "passage", "review", "question"];
const MAX_SHOWN = 200;

// {texts, options, format}: `options` has a list per item where the items are objects with `options`, else null.
export function parseItems(text, format = "auto", field = "items") {
  const decided = format === "auto" ? looksLike(text) : format;
  if (decided === "json") return { ...fromJson(text, field), format: decided };
  const texts = decided === "csv" ? fromCsv(text, field) : lines(text);
  return { texts, options: null, format: decided };
}

export function formatOfFile(name) {
  const extension = name.toLowerCase().split(".").pop();
  return { csv: "csv", tsv: "csv", json: "json", jsonl: "json", txt: "lines" }[extension] ?? "auto";
}

// Spaces at the beginning of a line belong to the item; lines without anything are left out.
export function lines(text) {
  return text.split(/\r?\n/).filter((line) => line.trim() !== "");
}

// A text in which spaces at both ends and line ends can be seen.
export function visible(text, limit = MAX_SHOWN) {
  const cut = text.length > limit ? `${text.slice(0, limit)}…` : text;
  const edges = cut.replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length));
  return edges.replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "(empty)";
}

function looksLike(text) {
  const trimmed = text.trim();
  if (trimmed.startsWith("[") || trimmed.startsWith("{")) {
    try {
      jsonValues(trimmed);
      return "json";
    } catch {
      return "lines";
    }
  }
  const header = trimmed
    .split(/\r?\n/)[0]
    .toLowerCase()
    .split(/[,\t]/)
    .map((name) => name.trim().replaceAll('"', ""));
  return header.length > 1 && header.some((name) => TEXT_COLUMNS.includes(name)) ? "csv" : "lines";
}

function jsonValues(text) {
  if (text.startsWith("[")) return JSON.parse(text);
  return lines(text).map((line) => JSON.parse(line));
}

function fromJson(text, field) {
  let values;
  try {
    values = jsonValues(text.trim());
  } catch (error) {
    throw new FormError(field, `This is not JSON: ${error.message}.`);
  }
  const texts = values.map((value, index) => {
    const found = typeof value === "object" && value !== null ? textMember(value) : value;
    if (typeof found !== "string")
      throw new FormError(field, `Item ${index + 1} must be a text, or an object with "text".`);
    return found;
  });
  const options = values.map((value) => (Array.isArray(value?.options) ? value.options.map(String) : null));
  const given = options.filter((list) => list !== null).length;
  if (given !== 0 && given !== options.length) throw new FormError(field, "Either every item has options, or none.");
  return { texts, options: given === 0 ? null : options };
}

function textMember(value) {
  return TEXT_COLUMNS.map((name) => value[name]).find((member) => member !== undefined);
}

function fromCsv(text, field) {
  const rows = csvRows(text);
  if (rows.length < 2) throw new FormError(field, "The CSV needs a header and at least one row.");
  const header = rows[0].map((name) => name.trim().toLowerCase());
  const named = TEXT_COLUMNS.map((name) => header.indexOf(name)).find((index) => index >= 0) ?? 0;
  return rows
    .slice(1)
    .map((row) => row[named] ?? "")
    .filter((cell) => cell.trim() !== "");
}

// Quoted fields may hold separators, line ends and doubled quotes. Tabs separate where the header has one.
export function csvRows(text) {
  const separator = text.split(/\r?\n/)[0].includes("\t") ? "\t" : ",";
  const rows = [];
  let row = [],
    cell = "",
    quoted = false;
  const endCell = () => (row.push(cell), (cell = ""));
  const endRow = () => {
    endCell();
    if (row.length > 1 || row[0] !== "") rows.push(row);
    row = [];
  };
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at];
    if (quoted) {
      if (character !== '"') cell += character;
      else if (text[at + 1] === '"') ((cell += '"'), (at += 1));
      else quoted = false;
    } else if (character === '"' && cell === "") quoted = true;
    else if (character === separator) endCell();
    else if (character === "\n") endRow();
    else if (character !== "\r") cell += character;
  }
  if (cell !== "" || row.length > 0) endRow();
  return rows;
}
