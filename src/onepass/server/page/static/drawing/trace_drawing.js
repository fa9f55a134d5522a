// Drawings of a request's trace: its steps on a time axis, and the mask of a step from the places of its segments.

import { h, svg } from "../dom.js";

const WIDTH = 720;
const MAX_CELLS = 240; // rows and columns of a mask; more tokens share a cell

// Encode, wait and each step from launch to collection, in milliseconds after the server had the request.
export function timeline(timings, trace) {
  const before = timings.encode_ms, steps = trace.steps;
  const end = before + Math.max(0.001, ...steps.map((step) => step.collected_ms));
  const scale = WIDTH / end;
  const bars = [bar("encode", 0, before, `encode: ${ms(before)}`)];
  if (steps.length > 0) bars.push(bar("queue", before, steps[0].launched_ms, `queue: ${ms(steps[0].launched_ms)}`));
  steps.forEach((step, index) => {
    const words = `step ${index + 1}: ${step.tokens} of ${step.all_tokens} tokens, ${ms(step.device_ms)} on the device`;
    bars.push(bar(index % 2 ? "device odd" : "device", before + step.launched_ms, step.collected_ms - step.launched_ms, words));
  });
  const ticks = axis(end).map((value) => [
    svg("line", { class: "axis", x1: value * scale, x2: value * scale, y1: 0, y2: 40 }),
    svg("text", { class: "tick-label", x: Math.min(value * scale, WIDTH - 24), y: 56, "text-anchor": value ? "middle" : "start" }, value ? number(value) : "0 ms"),
  ]);
  return svg("svg", { class: "timeline", viewBox: `0 0 ${WIDTH} 60`, role: "img", "aria-label": `${steps.length} steps in ${ms(end)}` }, ticks, bars);

  function bar(kind, start, length, words) {
    const shape = { class: `span ${kind}`, x: start * scale, y: 8, width: Math.max(length * scale, 0.6), height: 26 };
    return svg("rect", shape, svg("title", {}, words));
  }
}

function axis(end) {
  const unit = 10 ** Math.floor(Math.log10(end / 2));
  const step = [5, 2, 1].map((size) => size * unit).find((size) => size <= end / 2);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, n) => n * step);
}

// The mask of a step by the visibility rule: rows are the request's tokens in the step, columns the keys they may see:
// those of its contexts in pages first, then those of its own segments. Tokens share cells where there are many.
export function mask(step) {
  const keys = keysOf(step), queries = step.segments;
  const columns = sum(keys), rows = sum(queries);
  const cell = Math.max(1, Math.ceil(Math.max(rows, columns) / MAX_CELLS));
  const pixel = Math.max(2, Math.floor(MAX_CELLS * 2 / Math.max(rows / cell, columns / cell)) / 1);
  const side = Math.min(12, pixel);
  const width = Math.ceil(columns / cell), height = Math.ceil(rows / cell);
  const canvas = h("canvas", { width: width * side, height: height * side, role: "img", class: "mask",
    "aria-label": `${rows} tokens ask ${columns} keys; ${seenPairs(step).toLocaleString("en")} pairs are seen` });
  const paint = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const colours = { context: style.getPropertyValue("--accent"), item: style.getPropertyValue("--s2"), cached: style.getPropertyValue("--s4") };
  paint.fillStyle = style.getPropertyValue("--raised");
  paint.fillRect(0, 0, canvas.width, canvas.height);
  for (const query of queries) {
    for (const key of keys) {
      if (!sees(query, key)) continue;
      paint.fillStyle = colours[key.kind];
      for (let token = 0; token < query.tokens; token += 1) {
        const visible = Math.min(key.tokens, query.position + token - key.position + 1);
        if (visible <= 0) continue;
        const x = Math.floor(key.first / cell), last = Math.floor((key.first + visible - 1) / cell);
        paint.fillRect(x * side, Math.floor((query.first + token) / cell) * side, (last - x + 1) * side, side);
      }
    }
  }
  return canvas;
}

// Pairs of a token and a key that the rule allows, for the request's own tokens in a step.
export function seenPairs(step) {
  const keys = keysOf(step);
  let pairs = 0;
  for (const query of step.segments) {
    for (const key of keys) {
      if (!sees(query, key)) continue;
      for (let token = 0; token < query.tokens; token += 1) {
        pairs += Math.max(0, Math.min(key.tokens, query.position + token - key.position + 1));
      }
    }
  }
  return pairs;
}

function sees(query, key) {
  return key.segment === query.segment || key.segment === query.parent || key.segment === query.context;
}

// What can be asked: each context from its beginning (its keys are in pages), then the segments of items and branches.
function keysOf(step) {
  const contexts = new Map();
  for (const one of step.segments) {
    const end = one.segment === one.context ? one.position + one.tokens : one.parent === one.context ? one.position : 0;
    contexts.set(one.context, Math.max(contexts.get(one.context) ?? 0, end));
  }
  const computed = new Map();
  for (const one of step.segments) if (one.segment === one.context) computed.set(one.context, Math.min(computed.get(one.context) ?? Infinity, one.position));
  const keys = [];
  let first = 0;
  const add = (segment, position, tokens, kind) => {
    if (tokens > 0) keys.push({ segment, position, tokens, kind, first });
    first += Math.max(0, tokens);
  };
  for (const [context, length] of contexts) {
    const start = Math.min(computed.get(context) ?? length, length);
    add(context, 0, start, "cached");
    add(context, start, length - start, "context");
  }
  for (const one of step.segments) if (one.segment !== one.context) add(one.segment, one.position, one.tokens, "item");
  return keys;
}

function sum(parts) {
  return parts.reduce((total, part) => total + part.tokens, 0);
}

export function ms(value) {
  return `${number(value)} ms`;
}

export function number(value) {
  return value >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}
