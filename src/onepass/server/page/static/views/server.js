// The view Server: load, queue, tokens, cache and steps of the last minutes from /metrics; model, programs and backends from /info.

import { h } from "../dom.js";
import { LineChart } from "../drawing/chart.js";
import { registerView } from "../registry.js";
import { ApiError } from "../requests/api.js";
import { parseMetrics, Readings } from "../requests/metrics.js";

const POLL_MILLISECONDS = 2000;
const MINUTES = 5;
const SHORTEST_MILLISECONDS = 60_000; // the time axis grows from a minute
const GIB = 2 ** 30;

registerView({
  name: "server",
  title: "Server",
  order: 90,
  summary: `The last ${MINUTES} minutes of this server, read every ${POLL_MILLISECONDS / 1000} seconds while this view is open.`,
  create: (page) => new ServerView(page),
});

class ServerView {
  constructor(page) {
    this.page = page;
    this.readings = new Readings((MINUTES * 60_000) / POLL_MILLISECONDS + 1);
    this.charts = makeCharts();
    this.notice = h("div", { role: "status" });
    this.info = h("div", {});
    this.timer = null;
    const drawn = h(
      "div",
      { class: "charts" },
      this.charts.map(({ chart }) => chart.element),
    );
    this.element = h("div", {}, this.notice, drawn, this.info);
  }

  opened() {
    clearInterval(this.timer);
    this.timer = setInterval(() => document.hidden || this.poll(), POLL_MILLISECONDS);
    this.poll();
    this.readInfo();
  }

  closed() {
    clearInterval(this.timer);
    this.timer = null;
  }

  async poll() {
    let text;
    try {
      text = (await this.page.api.once("metrics", null, null)).value;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.notice.replaceChildren(h("p", { class: "notice warn" }, `${error.words} ${error.message}`));
      return;
    }
    this.notice.replaceChildren();
    const now = Date.now();
    this.readings.add(parseMetrics(text), now);
    const from = Math.min(this.readings.list[0].at, now - SHORTEST_MILLISECONDS);
    for (const { chart, points } of this.charts) chart.draw(points(this.readings), from, now);
    if (!this.info.hasChildNodes()) this.readInfo();
  }

  async readInfo() {
    try {
      this.info.replaceChildren(...about((await this.page.api.once("info", null, null)).value));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
  }
}

function makeCharts() {
  const chart = (title, format, points, options) => ({ chart: new LineChart(title, format, options), points });
  return [
    chart("Requests per second", short, (all) => all.rate("onepass_requests_total")),
    chart("Items per second", short, (all) => all.rate("onepass_items_total")),
    chart("Tokens per second", short, (all) => all.rate("onepass_prompt_tokens_total"), {
      hint: "Tokens of requests, the context counted once",
    }),
    chart("Latency, mean", seconds, (all) => all.ratio("onepass_request_seconds_sum", "onepass_request_seconds_count")),
    chart("Waiting for the device, mean", seconds, (all) =>
      all.ratio("onepass_queue_seconds_sum", "onepass_queue_seconds_count"),
    ),
    chart("Requests waiting or running", short, (all) => all.level("onepass_queue_requests")),
    chart("Device busy", percent, (all) => all.rate("onepass_engine_device_seconds_total"), { max: 1 }),
    chart("Steps per second", short, (all) => all.rate("onepass_engine_steps_total")),
    chart(
      "Kept contexts",
      (value) => `${short(value)} MiB`,
      (all) => mebibytes(all.level("onepass_cache_bytes")),
    ),
    chart("Cached tokens per second", short, (all) => all.rate("onepass_cached_tokens_total")),
  ];
}

function mebibytes(points) {
  return points.map(({ at, value }) => ({ at, value: value === null ? null : value / 2 ** 20 }));
}

function about(info) {
  const { details } = info,
    device = details.hardware ?? {};
  const facts = [
    ["Model", info.model ?? "none is ready yet"],
    ["State", `${info.health.state}: ${info.health.reason}`],
    ["Dtype", details.dtype],
    ["Device", device.device],
    ["Weights", details.memory && gibibytes(details.memory.weights_bytes)],
    ["Room for kept contexts", details.memory && gibibytes(details.memory.contexts_bytes)],
    [
      "Parallel",
      details.parallel && `tp ${details.parallel.tp}, dp ${details.parallel.dp}: ${details.parallel.reason}`,
    ],
    ["Ranks by", info.ranking?.method],
    ["Engine restarts", String(info.health.restarts)],
    ["onepass", info.version],
  ].filter(([, value]) => value);
  return [
    h("h3", {}, "Model and machine"),
    h(
      "dl",
      { class: "facts" },
      facts.map(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]),
    ),
    ...backends(details),
    ...programs(details),
  ];
}

// `backends` says more than `attention`, which older servers have.
function backends(details) {
  const rows = details.backends
    ? details.backends.map((backend) => [
        backend.name,
        backend.state,
        [backend.provides, backend.problem, backend.code].filter(Boolean).join("; "),
      ])
    : Object.entries(details.attention ?? {}).map(([name, state]) => [
        name,
        name === details.engine.attention ? "used" : state === "available" ? state : "unavailable",
        state,
      ]);
  if (rows.length === 0) return [];
  const head = h(
    "tr",
    {},
    ["Backend", "State", "What it does, and why not"].map((text) => h("th", { scope: "col" }, text)),
  );
  const body = rows.map(([name, state, why]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      h("td", { class: state === "used" ? "good" : "" }, state),
      h("td", {}, why),
    ),
  );
  return [
    h("h3", {}, "Backends"),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Backends" },
      h("table", {}, h("thead", {}, head), h("tbody", {}, body)),
    ),
  ];
}

function programs(details) {
  if (!details.programs) return [];
  const list = details.programs.map((program) => h("li", { class: "chip" }, program));
  return [
    h("h3", {}, `Programs: ${list.length}, all compiled before the first request`),
    h("ul", { class: "chips" }, list),
  ];
}

function short(value) {
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
}

function seconds(value) {
  return value >= 1 ? `${value.toFixed(1)} s` : `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
}

function percent(value) {
  return `${(100 * value).toFixed(0)} %`;
}

function gibibytes(value) {
  return value < GIB / 10 ? `${(value / 2 ** 20).toFixed(1)} MiB` : `${(value / GIB).toFixed(2)} GiB`;
}
