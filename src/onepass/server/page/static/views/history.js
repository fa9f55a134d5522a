// The view History: the requests of this tab with their latencies; each can be opened again in its form.

import { h } from "../dom.js";
import { registerView } from "../registry.js";

const ON_DEVICE = "Of that on the device";

registerView({
  name: "history",
  title: "History",
  order: 80,
  summary: "The requests of this tab, newest first. They are forgotten when the tab is closed.",
  create(page) {
    const element = h("div", {});
    const draw = () => element.replaceChildren(...content(page, draw));
    page.requests.subscribe(draw);
    draw();
    return { element, opened: draw };
  },
});

function content(page, redraw) {
  const entries = page.requests.entries;
  if (entries.length === 0) return [h("p", {}, "Nothing has been sent from this tab yet.")];
  const clear = () => {
    page.requests.clear();
    redraw();
  };
  const slowest = Math.max(...entries.map((entry) => entry.milliseconds ?? 0), 1);
  const heading = ["When", "View", "Request", "Latency", ON_DEVICE, ""];
  const head = h(
    "tr",
    {},
    heading.map((text) => h("th", { scope: "col", class: text === ON_DEVICE ? "number" : "" }, text || unseen("Open"))),
  );
  const rows = entries.map((entry) => row(page, entry, slowest));
  return [
    h("div", { class: "scroll" }, h("table", { class: "history" }, h("thead", {}, head), h("tbody", {}, rows))),
    h("p", { class: "tools" }, h("button", { type: "button", class: "small", onclick: clear }, "Clear")),
  ];
}

function unseen(text) {
  return h("span", { class: "unseen" }, text);
}

function row(page, entry, slowest) {
  const open = () => page.open(entry.view, entry.state);
  const share = `${(100 * (entry.milliseconds ?? 0)) / slowest}%`;
  const bar = h("div", { class: "bar", "aria-hidden": "true" }, h("div", { class: "fill", style: { width: share } }));
  const time = new Date(entry.at).toLocaleTimeString();
  return h(
    "tr",
    {},
    h("td", { class: "mono" }, time),
    h("td", {}, entry.view),
    h("td", {}, entry.error ? h("span", { class: "bad" }, entry.error) : entry.summary),
    h("td", { class: "latency" }, bar, h("span", { class: "number" }, milliseconds(entry.milliseconds))),
    h("td", { class: "number" }, milliseconds(entry.deviceMilliseconds)),
    h(
      "td",
      {},
      h(
        "button",
        { type: "button", class: "small", "aria-label": `Open the request of ${time}`, onclick: open },
        "Open",
      ),
    ),
  );
}

function milliseconds(value) {
  return value === undefined || value === null ? "–" : `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
}
