// The view What ran: the request of Score with return_trace. Its steps on a time axis, what was cached, padded and computed in
// each, and the mask of a step drawn from the request's own places; and the same request in every mode.

import { h } from "../dom.js";
import { mask, ms, number, seenPairs, timeline } from "../drawing/trace_drawing.js";
import { choice } from "../forms/fields.js";
import { RequestBar } from "../forms/request_bar.js";
import { plural, Runner } from "../forms/runner.js";
import { registerView } from "../registry.js";

const PATH = "/v1/score";
const MODES = ["auto", "packed", "extend", "chunked", "serial"];
const MAX_MASK = 60; // steps that can be chosen to be drawn

registerView({
  name: "what-ran",
  title: "What ran",
  order: 50,
  summary: "The steps of the device that computed the request in Score: when, with how many tokens, and who saw whom.",
  create: (page) => new WhatRanView(page),
});

class WhatRanView {
  constructor(page) {
    this.page = page;
    this.runner = new Runner(page, "what-ran");
    this.mode = choice("Run", [["chosen", "in the mode chosen in Score"], ["all", "in every mode, one after another"]]);
    this.results = h("section", { "aria-label": "Results" });
    this.bar = new RequestBar(page, this.runner, () => this.run(), { fields: [this.mode.element] });
    this.element = h("div", {}, this.bar.element, this.runner.notices, this.results);
  }

  opened() {
    this.bar.describe();
  }

  run() {
    return this.runner.run(async (send) => {
      const body = { ...this.bar.body(), return_trace: true };
      const modes = this.mode.input.value === "all" ? MODES : [body.mode ?? "auto"];
      const runs = [];
      for (const mode of modes) {
        this.runner.progress(`Running in mode ${mode}…`);
        const { value } = await send(PATH, { ...body, mode });
        runs.push({ asked: mode, ...value });
      }
      this.results.replaceChildren(modes.length > 1 ? comparison(runs) : "", ...runs.map((run) => this.section(run)));
      this.page.announce(`${plural(runs[0].trace.steps.length, "step")} ran.`);
    });
  }

  section(run) {
    const { trace, timings, usage } = run;
    const details = usage.prompt_tokens_details, repeated = details.computed_tokens + details.cached_tokens - usage.prompt_tokens;
    const words = [
      `${plural(trace.steps.length + trace.omitted_steps, "step")}`,
      `${plural(details.computed_tokens, "token")} computed, ${number(details.cached_tokens)} cached`,
      repeated > 0 ? `${plural(repeated, "token")} computed more than once` : null,
      `padding ratio ${timings.padding_ratio}`,
    ];
    return h(
      "section",
      { class: "ran" },
      h("h3", {}, `Mode ${run.mode}`),
      h("p", {}, `${run.reason}. ${words.filter(Boolean).join(" · ")}.`),
      timeline(timings, trace),
      legend([["encode", "encode"], ["queue", "queue"], ["device", "a step, from launch to collection"]]),
      stepTable(trace),
      omitted(trace),
      maskPicker(trace),
    );
  }
}

function comparison(runs) {
  const rows = runs.map((run) => {
    const details = run.usage.prompt_tokens_details;
    const pairs = run.trace.steps.reduce((total, step) => total + seenPairs(step), 0);
    return [run.asked === run.mode ? run.mode : `${run.asked} → ${run.mode}`, run.trace.steps.length + run.trace.omitted_steps, details.computed_tokens, details.cached_tokens, pairs, run.timings.device_ms, run.timings.total_ms];
  });
  const headings = ["mode", "steps", "computed tokens", "cached tokens", "pairs seen", "device ms", "total ms"];
  return h("section", {}, h("h3", {}, "Every mode"), table(headings, rows), h("p", { class: "dim" }, "A context that one mode left in the cache is cached for the next."));
}

function stepTable(trace) {
  const rows = trace.steps.map((step, index) => [
    index + 1, step.number, step.rung, step.tokens, step.all_tokens, step.computed_tokens - step.all_tokens, step.cached_tokens, step.pages_read, step.launched_ms, step.device_ms,
  ]);
  const headings = ["step", "engine's number", "rung", "own tokens", "all tokens", "padding", "cached", "pages read", "launched ms", "device ms"];
  return table(headings, rows);
}

function table(headings, rows) {
  const head = h("tr", {}, headings.map((heading, index) => h("th", { scope: "col", class: index ? "number" : "" }, heading)));
  const lines = rows.map((row) => h("tr", {}, row.map((cell, index) => h(index ? "td" : "th", index ? { class: "number" } : { scope: "row" }, typeof cell === "number" ? number(cell) : cell))));
  return h("div", { class: "window", tabindex: "0", role: "group", "aria-label": "Table" }, h("table", { class: "plain" }, h("thead", {}, head), h("tbody", {}, lines)));
}

function omitted(trace) {
  if (trace.omitted_steps + trace.omitted_segments === 0) return "";
  return h("p", { class: "dim" }, `A trace is bounded: ${plural(trace.omitted_steps, "step")} and ${plural(trace.omitted_segments, "segment")} more are not in it.`);
}

// The mask of one step; which one is chosen where there are several.
function maskPicker(trace) {
  const drawn = h("div", { class: "scroll" });
  const draw = (index) => {
    const step = trace.steps[index];
    const items = step.segments.filter((one) => one.segment !== one.context).length;
    drawn.replaceChildren(
      mask(step),
      h("p", { class: "dim" }, `${plural(step.tokens, "token")} ask (rows); ${plural(items, "item segment")}; ${plural(seenPairs(step), "pair")} of token and key are seen. Keys (columns): the context's, then those of items.`),
    );
  };
  const steps = trace.steps.slice(0, MAX_MASK).map((_, index) => [String(index), `step ${index + 1}`]);
  if (steps.length === 0) return "";
  const picker = choice("Mask of", steps);
  picker.input.addEventListener("change", () => draw(Number(picker.input.value)));
  draw(0);
  const colours = legend([["cached", "context keys that were cached"], ["context", "context keys computed in this step"], ["item", "keys of items"]]);
  return h("div", {}, steps.length > 1 ? picker.element : h("h3", {}, "Mask of the step"), drawn, colours);
}

function legend(entries) {
  return h("p", { class: "legend" }, entries.map(([kind, text]) => h("span", {}, h("span", { class: `swatch ran-${kind}`, "aria-hidden": "true" }), ` ${text}`)));
}
