// The view Modes: the request of Score in serial, packed dense, packed segment, chunked and extend. Which tiles of attention each
// computes, counted from the kernels' own tables, what is computed twice, and its steps on a measured time axis.

import { h } from "../dom.js";
import { KIND_WORDS, kindsOf, modeTimeline, tileGrid } from "../drawing/modes_drawing.js";
import { number } from "../drawing/trace_drawing.js";
import { numberInput } from "../forms/fields.js";
import { RequestBar } from "../forms/request_bar.js";
import { plural, Runner } from "../forms/runner.js";
import { registerView } from "../registry.js";
import { ApiError } from "../requests/api.js";
import { copyButtons, csv } from "../requests/copy.js";

const PATH = "/v1/modes";
const NOT_SENT = ["mode", "label_mass"]; // of a request in Score
const HEADINGS = ["mode", "steps", "tokens", "computed twice", "tiles", "tiles needed", "pairs seen", "device ms", "total ms"];
const OFF =
  "This server was started without the visualizer, which takes the device for seconds: onepass serve --visualizer has it, and onepass visualize writes the same as a file.";

registerView({
  name: "modes",
  title: "Modes",
  order: 55,
  summary: "The request in Score in every mode, with nothing cached: what each computes of attention, and when.",
  create: (page) => new ModesView(page),
});

class ModesView {
  constructor(page) {
    this.page = page;
    this.runner = new Runner(page, "modes");
    this.repeats = numberInput("Timed runs of each mode", { min: "1", max: "9", step: "1", value: 3 });
    this.bar = new RequestBar(page, this.runner, () => this.run(), { fields: [this.repeats.element] });
    this.off = h("p", { class: "notice warn", hidden: true }, OFF);
    this.results = h("section", { "aria-label": "Results" });
    this.element = h("div", {}, this.off, this.bar.element, this.runner.notices, this.results);
  }

  opened() {
    this.bar.describe();
    this.findOut();
  }

  async findOut() {
    try {
      const { details } = (await this.page.api.once("info", null, null)).value;
      this.off.hidden = details.visualizer !== false;
      this.runner.button.disabled = details.visualizer === false;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error; // the header says what is wrong
    }
  }

  run() {
    return this.runner.run(async (send) => {
      const body = { ...this.bar.body(), repeats: Number(this.repeats.input.value) };
      for (const name of NOT_SENT) delete body[name];
      this.runner.progress("Running in every mode. The first time programs are compiled: this may take a minute…");
      const { value } = await send(PATH, body);
      this.show(value);
      this.page.announce(summary(value.modes));
    });
  }

  show(value) {
    const { modes } = value,
      rows = modes.map(cells),
      { tokens, page } = modes[0].tile;
    const tools = copyButtons(this.page, {
      CSV: () => csv([HEADINGS, ...rows]),
      JSON: () => JSON.stringify(value, null, 2),
    });
    this.results.replaceChildren(
      h("p", { class: "result-line" }, h("strong", {}, summary(modes))),
      tools,
      table(rows),
      h(
        "p",
        { class: "dim" },
        `A tile is ${tokens} asking tokens against a page of ${page} context keys, or against ${tokens} keys of the step's items. Tiles are counted from the table that the kernel walks, in every layer but the last, which asks at read-outs only; those that are needed are counted by the visibility rule, token by token. “Pairs seen” is the part of a mode's pairs of token and key that the rule allows. “Computed twice” are tokens beyond the context once and every item once.`,
      ),
      h("h3", {}, "Steps on a time axis"),
      modeTimeline(modes),
      h("p", { class: "dim" }, times(value)),
      h("h3", {}, "Which tiles each mode computes"),
      legend(modes),
      ...modes.map(drawnMode),
    );
  }
}

function cells(mode) {
  const device = mode.trace.steps.reduce((total, step) => total + step.device_ms, 0);
  return [
    mode.mode,
    mode.steps,
    mode.computed_tokens,
    mode.tokens_computed_twice,
    mode.tiles,
    mode.tiles_needed,
    percent(mode.pairs_seen / Math.max(1, mode.pairs)),
    number(device),
    number(mode.total_ms),
  ];
}

function summary(modes) {
  const ours = modes.find((mode) => mode.mode === "packed-segment") ?? modes[0];
  const others = modes
    .filter((mode) => mode !== ours)
    .map((mode) => `${mode.mode} ${count(mode.tiles)} (${number(mode.tiles / Math.max(1, ours.tiles))} x)`);
  const took = `${plural(ours.steps, "step")} and ${number(ours.total_ms)} ms`;
  return `${ours.mode} computes ${count(ours.tiles)} tiles of attention in ${took}; ${others.join(", ")}.`;
}

function table(rows) {
  const head = HEADINGS.map((heading, at) => h("th", { scope: "col", class: at ? "number" : "" }, heading));
  const body = rows.map(([name, ...values]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      values.map((value) => h("td", { class: "number" }, typeof value === "number" ? count(value) : value)),
    ),
  );
  return h(
    "div",
    { class: "window", tabindex: "0", role: "group", "aria-label": "Every mode" },
    h("table", { class: "plain" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)),
  );
}

function times(value) {
  const spread = value.modes.map(({ mode, total_ms, times_ms }) => {
    const range = `${number(Math.min(...times_ms))} to ${number(Math.max(...times_ms))}`;
    return `${mode} ${number(total_ms)} ms (${range}, ${times_ms.length})`;
  });
  return `The run of median time is drawn, of runs with nothing cached: their range, and how many there were (a mode is repeated for a minute at most): ${spread.join("; ")}. Requests of others share the device meanwhile.`;
}

function legend(modes) {
  const swatch = (kind) => h("span", { class: `swatch tile-${kind}`, "aria-hidden": "true" });
  const entries = kindsOf(modes).map((kind) => h("span", {}, swatch(kind), ` ${KIND_WORDS[kind]}`));
  return h("p", { class: "legend" }, entries);
}

function drawnMode(mode) {
  const figures = mode.drawn.map((step, at) => {
    const tokens = mode.trace.steps[at]?.tokens;
    const words = [
      `step ${at + 1} of ${count(mode.steps)}: ${count(step.tiles)} tiles, rung ${count(step.rung)}`,
      tokens === undefined ? null : `${count(tokens)} tokens`,
    ]
      .filter(Boolean)
      .join(", ");
    return h("figure", {}, tileGrid(step, `${mode.mode}, ${words}`), h("figcaption", {}, words));
  });
  const left = mode.steps - mode.drawn.length,
    tiles = mode.tiles - mode.drawn.reduce((total, step) => total + step.tiles, 0);
  return h(
    "section",
    {},
    h("h4", {}, mode.mode),
    h("p", { class: "dim" }, `${mode.reason}. Attention by ${mode.attention}.`),
    h("div", { class: "tile-steps" }, figures),
    left > 0 ? h("p", { class: "dim" }, `And ${plural(left, "more step")} with ${count(tiles)} tiles.`) : "",
  );
}

function percent(share) {
  return `${share < 0.01 ? Number((100 * share).toPrecision(1)) : Math.round(100 * share)} %`;
}

function count(value) {
  return value.toLocaleString("en");
}
