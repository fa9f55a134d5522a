// A table of any length: only the rows that can be seen are in the document, at a fixed height each. Columns sort.

import { h } from "../dom.js";

const ROW_HEIGHT = 36; // pixels, as views.css has it
const SPARE_ROWS = 8; // above and below what can be seen

// columns: [{title, width (rem), number, value(row), cell(row), heading}]. `value` is what sorts, `cell` what is shown: text, an
// element, or a whole <td>. Rows are anything; the table never changes them.
export class VirtualTable {
  constructor(label, columns) {
    this.columns = columns;
    this.rows = [];
    this.order = { column: null, descending: false };
    this.body = h("tbody", {});
    this.buttons = [];
    const head = h(
      "tr",
      { "aria-rowindex": "1" },
      columns.map((column, index) => this.heading(column, index)),
    );
    const widths = columns.map((column) => h("col", { style: { width: `${column.width}rem` } }));
    const minimum = columns.reduce((sum, column) => sum + column.width, 0);
    const style = { "min-width": `${minimum}rem` };
    this.table = h("table", { class: "virtual", style }, h("colgroup", {}, widths), h("thead", {}, head), this.body);
    this.element = h("div", { class: "window", role: "region", tabindex: "0", "aria-label": label }, this.table);
    this.element.addEventListener("scroll", () => this.requestDraw());
    addEventListener("resize", () => this.requestDraw());
  }

  heading(column, index) {
    const classes = column.number ? "number" : "";
    if (!column.value) return h("th", { scope: "col", class: classes }, column.title);
    const button = h("button", { type: "button", class: "sort", onclick: () => this.sortBy(index) }, column.title);
    this.buttons.push(button);
    return h("th", { scope: "col", class: classes, "aria-sort": "none", title: column.hint ?? null }, button);
  }

  setRows(rows) {
    this.rows = rows;
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    this.sort();
  }

  // Numbers begin with the largest, texts with the first; the second click turns it round.
  sortBy(index) {
    const again = this.order.column === index;
    this.order = { column: index, descending: again ? !this.order.descending : Boolean(this.columns[index].number) };
    const heads = this.table.querySelectorAll("thead th");
    heads.forEach((head, at) => {
      if (!head.hasAttribute("aria-sort")) return;
      head.setAttribute("aria-sort", at !== index ? "none" : this.order.descending ? "descending" : "ascending");
    });
    this.sort();
  }

  sort() {
    const { column, descending } = this.order;
    this.sorted = [...this.rows];
    if (column !== null) {
      const value = this.columns[column].value,
        sign = descending ? -1 : 1;
      this.sorted.sort((a, b) => sign * compare(value(a), value(b)));
    }
    this.element.scrollTop = 0;
    this.drawn = null;
    this.draw();
  }

  requestDraw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = null;
      this.draw();
    });
  }

  draw() {
    const height = this.element.clientHeight || 600;
    const first = Math.max(0, Math.floor(this.element.scrollTop / ROW_HEIGHT) - SPARE_ROWS);
    const end = Math.min(this.sorted.length, first + Math.ceil(height / ROW_HEIGHT) + 2 * SPARE_ROWS);
    if (this.drawn?.first === first && this.drawn?.end === end) return;
    this.drawn = { first, end };
    const rows = this.sorted.slice(first, end).map((row, at) => this.row(row, first + at));
    this.body.replaceChildren(
      spacer(first, this.columns.length),
      ...rows,
      spacer(this.sorted.length - end, this.columns.length),
    );
  }

  row(row, index) {
    const cells = this.columns.map((column) => {
      const shown = column.cell(row);
      return shown instanceof HTMLTableCellElement
        ? shown
        : h("td", { class: column.number ? "number" : "text" }, shown);
    });
    return h("tr", { "aria-rowindex": String(index + 2) }, cells);
  }
}

function spacer(rows, columns) {
  if (rows <= 0) return h("tr", { hidden: true });
  const cell = h("td", { colspan: String(columns), style: { height: `${rows * ROW_HEIGHT}px` } });
  return h("tr", { class: "spacer", "aria-hidden": "true" }, cell);
}

function compare(a, b) {
  if (typeof a === "string") return a.localeCompare(b);
  return (Number.isNaN(a) ? -Infinity : a) - (Number.isNaN(b) ? -Infinity : b);
}
