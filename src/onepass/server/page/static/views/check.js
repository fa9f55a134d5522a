// The view Is it right?: the request of Score in the chosen mode beside the same request in `serial`, which computes each item alone, and
// with its items in another order. Scores must not differ by more than rounding.

import { h } from "../dom.js";
import { number } from "../drawing/heat_map.js";
import { VirtualTable } from "../drawing/table.js";
import { choice, numberInput } from "../forms/fields.js";
import { visible } from "../forms/items.js";
import { RequestBar } from "../forms/request_bar.js";
import { plural, Runner } from "../forms/runner.js";
import { columnNames, scoreRows } from "../forms/score_request.js";
import { registerView } from "../registry.js";

const PATH = "/v1/score";
const TOLERANCES = { float32: 1e-5, bfloat16: 1e-2, float16: 1e-2 }; // of probabilities, as `onepass validate` has them
const DEFAULT_TOLERANCE = 5e-2; // of quantized weights
const SHUFFLES = 3;

registerView({
  name: "check",
  title: "Is it right?",
  order: 60,
  summary:
    "The request in Score, in the chosen mode, beside one item at a time, and with its items in other orders. Differences must be rounding.",
  create: (page) => new CheckView(page),
});

class CheckView {
  constructor(page) {
    this.page = page;
    this.runner = new Runner(page, "check");
    this.mode = choice("Compare", [
      ["auto", "auto"],
      ["packed", "packed"],
      ["extend", "extend"],
      ["chunked", "chunked"],
    ]);
    this.count = numberInput("with serial, for the first items", { min: "1", max: "1000", step: "1", value: 20 });
    this.results = h("section", { "aria-label": "Results" });
    const fields = [this.mode.element, this.count.element];
    this.bar = new RequestBar(page, this.runner, () => this.run(), { fields });
    this.element = h("div", {}, this.bar.element, this.runner.notices, this.results);
  }

  opened() {
    this.bar.describe();
  }

  run() {
    return this.runner.run(async (send) => {
      const whole = this.bar.body();
      const body = firstItems(whole, Math.max(1, Number(this.count.input.value) || 20));
      delete body.mode;
      const chosen = this.mode.input.value === "auto" ? body : { ...body, mode: this.mode.input.value };
      const dtype = (await this.page.api.get("/info")).details.dtype ?? "";
      this.page.announce("Comparing.");
      const first = await send(PATH, chosen);
      this.runner.progress("One item at a time…");
      const serial = await send(PATH, { ...body, mode: "serial" });
      const orders = [];
      for (let turn = 0; turn < SHUFFLES && body.items.length > 1; turn += 1) {
        this.runner.progress(`Items in another order: ${turn + 1} of ${SHUFFLES}…`);
        const order = shuffled(body.items.length, turn + 1);
        const answer = await send(PATH, { ...chosen, ...reordered(chosen, order) });
        orders.push(inOrder(scoreRows({ ...chosen, ...reordered(chosen, order) }, answer.value), order));
      }
      this.show(chosen, first, serial, orders, dtype);
    });
  }

  show(body, first, serial, orders, dtype) {
    const mode = first.value.mode;
    const other = probabilities(scoreRows(body, serial.value));
    orders = orders.map(probabilities);
    const rows = probabilities(scoreRows(body, first.value)).map((row, at) => {
      const spread =
        orders.length === 0
          ? 0
          : Math.max(
              ...row.values.map((_, label) =>
                range([row, ...orders.map((order) => order[at])].map((one) => one.values[label])),
              ),
            );
      const gaps = row.values.map((value, label) => Math.abs(value - other[at].values[label]));
      const label = gaps.indexOf(Math.max(...gaps));
      return { ...row, serial: other[at].values, gap: gaps[label], label, spread };
    });
    const largest = Math.max(...rows.map((row) => row.gap)),
      spread = Math.max(...rows.map((row) => row.spread));
    const tolerance = TOLERANCES[dtype] ?? DEFAULT_TOLERANCE;
    const good = Math.max(largest, spread) <= tolerance;
    const names = columnNames(body);
    const table = new VirtualTable(`Each item in ${mode} and in serial`, [
      { title: "#", width: 3.6, number: true, value: (row) => -row.index, cell: (row) => String(row.index + 1) },
      {
        title: "Item",
        width: 16,
        value: (row) => String(row.item),
        cell: (row) => h("td", { class: "text item" }, visible(String(row.item), 200)),
      },
      {
        title: "Label",
        width: 8,
        value: (row) => name(row, names),
        cell: (row) => h("td", { class: "text" }, h("code", {}, visible(name(row, names), 20))),
      },
      {
        title: mode,
        width: 7,
        number: true,
        value: (row) => row.values[row.label],
        cell: (row) => number(row.values[row.label]),
      },
      {
        title: "serial",
        width: 7,
        number: true,
        value: (row) => row.serial[row.label],
        cell: (row) => number(row.serial[row.label]),
      },
      { title: "Difference", width: 7.5, number: true, value: (row) => row.gap, cell: (row) => scientific(row.gap) },
      { title: "Spread", width: 7.5, number: true, value: (row) => row.spread, cell: (row) => scientific(row.spread) },
    ]);
    table.setRows(rows);
    const verdict = good
      ? "Right: the differences are rounding."
      : "The differences are larger than rounding explains.";
    this.results.replaceChildren(
      h(
        "div",
        { class: `notice ${good ? "good" : "bad"}`, role: "status" },
        h("p", {}, h("strong", {}, verdict)),
        h(
          "p",
          { class: "dim" },
          `Up to ${scientific(tolerance)} is expected of probabilities in ${dtype || "these weights"}.`,
        ),
      ),
      h(
        "dl",
        { class: "facts" },
        fact(`Largest difference, ${mode} against serial`, scientific(largest)),
        fact(`Largest spread over ${plural(orders.length + 1, "order")} of the items`, scientific(spread)),
        fact(`Time in ${mode}`, `${Math.round(first.milliseconds)} ms`),
        fact("Time in serial", `${Math.round(serial.milliseconds)} ms`),
      ),
      h("p", { class: "dim" }, "Per item, the label that differs most."),
      table.element,
    );
    table.draw();
    this.page.announce(`${verdict} The largest difference is ${scientific(largest)}.`);
  }
}

// Likelihoods of continuations as probabilities, which the tolerances are of: among the item's options, or of a single one.
function probabilities(rows) {
  return rows.map((row) => {
    if (row.mass !== null) return row; // labels
    return { ...row, values: row.values.length > 1 ? row.shares : row.values.map(Math.exp) };
  });
}

function name(row, names) {
  return row.options?.[row.label] ?? names[row.label];
}

function fact(term, value) {
  return [h("dt", {}, term), h("dd", { class: "number" }, value)];
}

function scientific(value) {
  return value === 0 ? "0" : value.toExponential(1);
}

function range(values) {
  return Math.max(...values) - Math.min(...values);
}

function firstItems(body, count) {
  const few = { ...body, items: body.items.slice(0, count) };
  if (Array.isArray(body.continuations?.[0])) few.continuations = body.continuations.slice(0, count);
  return few;
}

function reordered(body, order) {
  const changed = { items: order.map((index) => body.items[index]) };
  if (Array.isArray(body.continuations?.[0])) changed.continuations = order.map((index) => body.continuations[index]);
  return changed;
}

// Rows of reordered items, back in the order of the request.
function inOrder(rows, order) {
  const out = [];
  rows.forEach((row, at) => (out[order[at]] = row));
  return out;
}

// The same orders every time, so that a finding can be repeated: Fisher and Yates's shuffle with a small generator.
function shuffled(count, seed) {
  const order = Array.from({ length: count }, (_, index) => index);
  let random = seed * 2654435761;
  for (let at = count - 1; at > 0; at -= 1) {
    random = (Math.imul(random, 1664525) + 1013904223) >>> 0;
    const other = random % (at + 1);
    [order[at], order[other]] = [order[other], order[at]];
  }
  return order;
}
