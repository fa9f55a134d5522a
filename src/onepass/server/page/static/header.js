// The top of the page: the model that is served, whether it is ready, and the API key.

import { h, newId } from "./dom.js";
import { PRESETS } from "./forms/presets.js";

const POLL_MILLISECONDS = 4000;

export class Header {
  constructor(page) {
    this.page = page;
    this.model = h("span", { class: "dim model" }, "");
    this.state = h("span", { class: "state", role: "status" }, "connecting");
    this.noticeBox = h("div", {});
    this.key = h("input", { type: "password", id: newId("key"), autocomplete: "off", spellcheck: "false" });
    this.keyForm = this.makeKeyForm();
    const keyButton = h("button", { type: "button", class: "small", onclick: () => this.showKey() }, "API key");
    this.element = h(
      "div",
      {},
      h("div", { class: "top" }, h("h1", {}, "onepass"), this.model, this.state, keyButton),
      this.keyForm,
      h("div", { class: "presets", role: "group", "aria-label": "Start from an example" }, "Start from", presets(page)),
      this.noticeBox,
    );
    page.api.onKeyWanted = () => this.showKey("The server asks for an API key, or does not know this one.");
  }

  makeKeyForm() {
    const reason = h("p", { class: "hint" }, "");
    const save = (event) => {
      event.preventDefault();
      this.page.api.key = this.key.value.trim();
      this.keyForm.hidden = true;
      this.page.announce(this.key.value ? "The key is used from now on." : "No key is sent.");
      this.refreshModel();
    };
    const label = h("label", { for: this.key.id }, "API key");
    const hint = h("p", { class: "hint" }, "Kept in this tab only, until it is closed; sent as Authorization: Bearer.");
    const buttons = h("div", { class: "row" }, this.key, h("button", { class: "primary" }, "Use this key"));
    const form = h("form", { class: "key", hidden: true, onsubmit: save }, label, buttons, hint, reason);
    form.reason = reason;
    return form;
  }

  showKey(reason = "") {
    this.keyForm.reason.textContent = reason;
    if (!this.keyForm.hidden && reason) return;
    this.keyForm.hidden = !this.keyForm.hidden;
    if (!this.keyForm.hidden) {
      this.key.value = this.page.api.key;
      this.key.focus();
    }
  }

  notice(text) {
    this.noticeBox.replaceChildren(h("div", { class: "notice warn", role: "alert" }, text));
  }

  start() {
    this.poll();
    setInterval(() => document.hidden || this.poll(), POLL_MILLISECONDS);
    addEventListener("visibilitychange", () => document.hidden || this.poll());
    this.refreshModel();
  }

  async refreshModel() {
    try {
      const models = (await this.page.api.once("v1/models", null, null)).value;
      this.model.textContent = models.data[0]?.id ?? "";
    } catch {
      this.model.textContent = ""; // the state beside it says why
    }
  }

  // /health needs no key, and is 503 with the reason while nothing can be served.
  async poll() {
    let health;
    try {
      const response = await fetch("health", { cache: "no-store" });
      health = await response.json();
    } catch {
      health = { ready: false, state: "no answer", reason: "The server does not answer." };
    }
    const was = this.state.dataset.state;
    this.state.className = `state ${health.ready ? "good" : "warn"}`;
    this.state.dataset.state = health.state;
    const text = health.ready ? "ready" : `${health.state}: ${health.reason}`;
    if (this.state.textContent !== text) this.state.textContent = text;
    if (health.ready && was !== health.state) this.refreshModel();
  }
}

function presets(page) {
  const open = (preset) => () => page.open(preset.view, preset.state);
  return PRESETS.map((preset) => h("button", { type: "button", class: "link", onclick: open(preset) }, preset.title));
}
