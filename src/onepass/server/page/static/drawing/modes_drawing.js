// Drawings of the view Modes: the steps of every mode on one time axis, and the tiles of attention that a step computes.

import { svg } from "../dom.js";
import { ms, number } from "./trace_drawing.js";

const WIDTH = 720,
  LEFT = 170, // names are in larger letters on a phone
  RIGHT = 150;
const ROW = 34,
  BAR = 20;
const CUT = 5; // a mode so many times slower than the median is cut at the axis's end
const SIDE = 380,
  MAX_TILE = 12; // of a picture, and of one tile
// Kinds of tiles in the order in which they are drawn; those of own keys lie right of the pages.
const KINDS = [
  ["whole", false],
  ["masked", false],
  ["own", true],
  ["unneeded", false],
  ["unneeded_own", true],
];

export const KIND_WORDS = {
  whole: "page of context keys that all tokens of the block see: no mask",
  masked: "page of context keys, masked",
  own: "keys of items in the step, masked",
  unneeded: "computed, but no token may see any of its keys",
};

// A row per mode: its steps from launch to collection, and its whole time.
export function modeTimeline(modes) {
  const axis = axisOf(modes.map((mode) => mode.end_ms)),
    scale = (WIDTH - LEFT - RIGHT) / axis.end,
    bottom = modes.length * ROW;
  const parts = [];
  for (let value = 0; value <= axis.end * 1.0001; value += axis.step) {
    const x = LEFT + value * scale;
    parts.push(svg("line", { class: "axis", x1: x, x2: x, y1: 0, y2: bottom }));
    const label = { class: "tick-label", x, y: bottom + 16, "text-anchor": "middle" };
    parts.push(svg("text", label, value ? number(value) : "0 ms"));
  }
  modes.forEach((mode, at) => parts.push(...modeRow(mode, at * ROW + (ROW - BAR) / 2, axis.end, scale)));
  const shape = { class: "timeline modes", viewBox: `0 0 ${WIDTH} ${bottom + 24}`, role: "img" };
  return svg("svg", { ...shape, "aria-label": "Steps of each mode on a time axis" }, parts);
}

function modeRow(mode, y, end, scale) {
  const shown = Math.min(mode.end_ms, end),
    cut = mode.end_ms > end;
  const after = LEFT + shown * scale + 6;
  const steps = mode.trace.steps
    .filter((step) => step.launched_ms < end)
    .map((step, index) => {
      const length = Math.min(step.collected_ms, end) - step.launched_ms;
      const words = `step ${index + 1}: ${step.tokens.toLocaleString("en")} tokens, ${ms(step.device_ms)} on the device`;
      const shape = { x: LEFT + step.launched_ms * scale, y, width: Math.max(length * scale, 0.4), height: BAR };
      return svg("rect", { class: index % 2 ? "span device odd" : "span device", ...shape }, svg("title", {}, words));
    });
  return [
    svg("text", { class: "name", x: LEFT - 8, y: y + 15, "text-anchor": "end" }, mode.mode),
    svg("rect", { class: "span queue", x: LEFT, y, width: shown * scale, height: BAR }),
    ...steps,
    svg("text", { class: "name", x: after, y: y + 15 }, `${ms(mode.end_ms)}${cut ? ", cut" : ""}`),
    cut ? svg("line", { class: "cut", x1: after - 14, x2: after - 14, y1: y, y2: y + BAR }) : null,
  ];
}

// The longest that is not CUT times as long as the median, up to a whole step of 1, 2 or 5 times a power of ten.
function axisOf(totals) {
  const median = [...totals].sort((a, b) => a - b)[totals.length >> 1];
  const longest = Math.max(...totals.filter((total) => total <= CUT * median));
  const unit = 10 ** Math.floor(Math.log10(longest / 2));
  const step = [5, 2, 1].map((size) => size * unit).find((size) => size <= longest / 2);
  return { step, end: step * Math.ceil(longest / step) };
}

// Rows are blocks of asking tokens; columns are pages of context keys, then blocks of the step's own keys.
export function tileGrid(step, title) {
  const gap = step.entries && step.own_blocks ? 1.5 : 0,
    columns = step.entries + step.own_blocks + gap;
  const side = Math.max(1, Math.min(MAX_TILE, SIDE / Math.max(step.rows, columns, 1)));
  const rect = (kind, x, y, width, height) => {
    const inset = kind === "grid" || side < 4 ? 0 : 0.6;
    const shape = { x: x * side + inset, y: y * side + inset, width: width * side - 2 * inset };
    return svg("rect", { class: `tile ${kind}`, ...shape, height: height * side - 2 * inset });
  };
  const parts = [];
  if (step.entries) parts.push(rect("grid", 0, 0, step.entries, step.rows));
  if (step.own_blocks) parts.push(rect("grid", step.entries + gap, 0, step.own_blocks, step.rows));
  for (const [kind, isOwn] of KINDS) {
    const shift = isOwn ? step.entries + gap : 0;
    for (const [row, first, end] of step.runs[kind] ?? [])
      parts.push(rect(kind.replace("_own", ""), first + shift, row, end - first, 1));
  }
  const width = columns * side,
    height = step.rows * side;
  const shape = { viewBox: `0 0 ${width} ${height}`, width: Math.round(width), height: Math.round(height), role: "img" };
  return svg("svg", { class: "tiles", ...shape, "aria-label": title }, parts);
}

// The kinds that occur in the drawn steps, in the order of the legend.
export function kindsOf(modes) {
  const present = new Set();
  for (const mode of modes)
    for (const step of mode.drawn)
      for (const [kind, runs] of Object.entries(step.runs))
        if (runs.length > 0) present.add(kind === "unneeded_own" ? "unneeded" : kind);
  return Object.keys(KIND_WORDS).filter((kind) => present.has(kind));
}
