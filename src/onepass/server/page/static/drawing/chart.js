// A small line chart: the last minutes of one number, its newest value in words, its scale at the side.

import { h, newId, svg } from "../dom.js";

const WIDTH = 260,
  HEIGHT = 64;

export class LineChart {
  // format(value) → text with its unit; `max` is the top of the scale where there is one.
  constructor(title, format, { max = null, hint = null } = {}) {
    Object.assign(this, { title, format, max });
    this.value = h("span", { class: "value" }, "–");
    this.top = h("span", { class: "scale" }, "");
    this.line = svg("path", { class: "line" });
    this.area = svg("path", { class: "area" });
    const id = newId("chart");
    const drawing = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      this.area,
      this.line,
    );
    this.element = h(
      "figure",
      { class: "chart", title: hint },
      h("figcaption", { id }, h("span", {}, title), this.value),
      h("div", { class: "plot" }, this.top, drawing),
    );
  }

  // points: [{at (milliseconds), value or null}]; a gap is drawn where a value is null.
  draw(points, from, to) {
    const known = points.filter((point) => point.value !== null);
    const last = points.at(-1);
    this.value.textContent = last === undefined || last.value === null ? "–" : this.format(last.value);
    const top = this.max ?? niceTop(Math.max(0, ...known.map((point) => point.value)));
    this.top.textContent = this.format(top);
    const x = (at) => (WIDTH * (at - from)) / (to - from),
      y = (value) => HEIGHT - 2 - ((HEIGHT - 4) * value) / (top || 1);
    let path = "",
      area = "",
      run = [];
    const endRun = () => {
      if (run.length > 0) {
        path += `M${run.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L")}`;
        area += `M${run[0][0].toFixed(1)} ${HEIGHT}L${run.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L")}L${run.at(-1)[0].toFixed(1)} ${HEIGHT}Z`;
      }
      run = [];
    };
    for (const { at, value } of points) value === null ? endRun() : run.push([x(at), y(value)]);
    endRun();
    this.line.setAttribute("d", path);
    this.area.setAttribute("d", area);
  }
}

// 1, 2 or 5 times a power of ten, not below the value.
export function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
