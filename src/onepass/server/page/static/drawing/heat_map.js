// The result of a score as a heat map: a row per item, a column per label, and the label mass as a second channel: rows are
// hatched where the labels hold less than half of the model's probability, so that it would rather have said something else.

import { h } from "../dom.js";
import { visible } from "../forms/items.js";
import { VirtualTable } from "./table.js";

export const LOW_MASS = 0.5; // as the server's decisions warn

export function heatMap(rows, names, { likelihoods = false } = {}) {
  const columns = [
    { title: "#", width: 3.2, number: true, value: (row) => -row.index, cell: (row) => String(row.index + 1) },
    { title: "Item", width: 14, value: (row) => row.item, cell: (row) => itemCell(row.item) },
    ...names.map((name, index) => ({
      title: visible(name, 24),
      width: 7,
      number: true,
      value: (row) => row.values[index] ?? Number.NaN,
      cell: (row) => heatCell(row, index, likelihoods),
    })),
  ];
  const hasMass = rows.some((row) => row.mass !== null);
  if (hasMass)
    columns.push({
      title: "Label mass",
      width: 8.5,
      number: true,
      hint: "How much of the whole vocabulary's probability the labels hold together",
      value: (row) => row.mass,
      cell: massCell,
    });
  const table = new VirtualTable("Scores of the items", columns);
  table.element.classList.add("heatmap");
  table.setRows(rows);
  return table;
}

export function number(value) {
  if (value === undefined || Number.isNaN(value)) return "";
  return Math.abs(value) >= 1000 ? value.toFixed(0) : value.toFixed(4);
}

function itemCell(item) {
  const text = typeof item === "string" ? item : item.join(" ");
  return h("td", { class: "text item", title: text.slice(0, 2000) }, visible(text, 300));
}

function heatCell(row, index, likelihoods) {
  const value = row.values[index];
  if (value === undefined) return h("td", { class: "number" }, h("span", { class: "dim" }, "–"));
  const best = row.best === index;
  const low = row.mass !== null && row.mass < LOW_MASS;
  const shown = row.options
    ? [h("span", { class: "option" }, visible(row.options[index], 18)), number(value)]
    : number(value);
  const style = { "--share": String(Math.max(0, Math.min(1, row.shares[index]))) };
  const said = best ? h("span", { class: "unseen" }, likelihoods ? " likeliest" : " best label") : null;
  return h("td", { class: `number heat${best ? " best" : ""}${low ? " hatched" : ""}`, style }, shown, said);
}

function massCell(row) {
  const low = row.mass < LOW_MASS;
  const fill = h("span", { class: "fill", style: { width: `${100 * Math.min(1, row.mass)}%` } });
  const said = low ? h("span", { class: "unseen" }, " low: the model would rather say something else") : null;
  return h(
    "td",
    { class: `number mass${low ? " low" : ""}` },
    h("span", { class: "bar", "aria-hidden": "true" }, fill),
    number(row.mass),
    said,
  );
}

export function legend() {
  const swatch = (kind) => h("span", { class: `swatch ${kind}`, "aria-hidden": "true" });
  return h(
    "p",
    { class: "dim legend" },
    "0 ",
    h("span", { class: "ramp", "aria-hidden": "true" }),
    " 1",
    h("span", {}, swatch("best"), " the item's best"),
    h("span", {}, swatch("hatched"), " label mass below 0.5: the model never meant to answer with these labels"),
  );
}
