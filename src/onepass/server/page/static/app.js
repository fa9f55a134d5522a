// Starts the page: the header, a tab per registered view, the view that the URL's fragment names.

import { h } from "./dom.js";
import { Header } from "./header.js";
import { registeredViews } from "./registry.js";
import { Api } from "./requests/api.js";
import { RequestHistory } from "./requests/history.js";
import { linkTo, stateOf, viewOf } from "./requests/link.js";

class Page {
  constructor() {
    this.api = new Api();
    this.requests = new RequestHistory();
    this.main = document.getElementById("main");
    this.status = document.getElementById("status");
    this.tabs = new Map();
    this.opened = new Map(); // name → what create() gave
    this.current = null;
    this.header = new Header(this);
  }

  start() {
    document.getElementById("top").append(this.header.element);
    const list = h("ul", { class: "tabs" });
    for (const view of registeredViews()) {
      const tab = h("a", { href: `#${view.name}` }, view.title);
      this.tabs.set(view.name, { view, tab });
      list.append(h("li", {}, tab));
    }
    document.getElementById("views").append(list);
    addEventListener("hashchange", () => this.follow());
    this.header.start();
    this.follow();
  }

  announce(text) {
    this.status.textContent = "";
    requestAnimationFrame(() => (this.status.textContent = text));
  }

  // Opens the view of the URL's fragment. A form in the fragment is taken over, and the URL made short again.
  async follow() {
    if (location.hash === "#main") return; // the link that skips the header
    const name = viewOf(location.hash);
    if (!this.tabs.has(name)) return this.show(this.tabs.keys().next().value, null);
    let state = null;
    try {
      state = await stateOf(location.hash);
    } catch {
      this.announce("The link is damaged: its request could not be read.");
      this.header.notice("The link is damaged: its request could not be read.");
    }
    this.show(name, state);
    if (state !== null) history.replaceState(null, "", `#${name}`);
  }

  open(name, state = null) {
    this.show(name, state);
    history.pushState(null, "", `#${name}`);
    this.main.focus();
  }

  show(name, state) {
    const { view } = this.tabs.get(name);
    const shown = this.viewOf(name);
    if (this.current !== null && this.current !== name) this.opened.get(this.current).closed?.();
    for (const [other, { tab }] of this.tabs) {
      if (other === name) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    if (this.current !== name) {
      const title = h("h2", {}, view.title);
      this.main.replaceChildren(title, h("p", { class: "dim" }, view.summary), shown.element);
      document.title = `${view.title} · onepass`;
      this.current = name;
    }
    if (state !== null) shown.restore?.(state);
    shown.opened?.();
  }

  viewOf(name) {
    if (!this.opened.has(name)) this.opened.set(name, this.tabs.get(name).view.create(this));
    return this.opened.get(name);
  }

  // The form of a view as plain JSON, also of one that was not opened yet.
  formOf(name) {
    return this.viewOf(name).state();
  }

  link(name, state) {
    return linkTo(name, state);
  }
}

new Page().start();
