// Sends a view's requests: the button that starts them becomes one that stops them, waiting and errors are said in
// words, and what was sent goes into the history.

import { h } from "../dom.js";
import { ApiError } from "../requests/api.js";
import { FormError } from "./fields.js";

export class Runner {
  constructor(page, view) {
    this.page = page;
    this.view = view;
    this.notices = h("div", { role: "alert" });
    this.button = h("button", { type: "submit", class: "primary" }, "Run");
    this.abort = null;
  }

  // work(send): `send(path, body)` gives {value, milliseconds}. A second call while the first one runs stops that.
  async run(work, { wrong = () => {} } = {}) {
    if (this.abort !== null) return this.abort.abort();
    this.abort = new AbortController();
    this.button.textContent = "Stop";
    this.progress("Running…");
    wrong(null);
    try {
      await work((path, body) => this.send(path, body));
      this.notices.replaceChildren();
    } catch (error) {
      if (error.name === "AbortError") this.say("warn", "Stopped.");
      else if (error instanceof FormError) (wrong(error), this.say("bad", error.message));
      else if (error instanceof ApiError) this.fail(error);
      else throw error;
    } finally {
      this.abort = null;
      this.button.textContent = "Run";
    }
  }

  send(path, body) {
    let tries = 0;
    const wait = (error, seconds) => {
      tries += 1;
      this.say("warn", error.words, error.message, `Trying again in ${seconds} s (try ${tries + 1}).`);
    };
    const done = this.page.api.post(path, body, { signal: this.abort.signal, wait });
    return done.then((answer) => {
      if (tries > 0) this.progress("Running…");
      return answer;
    });
  }

  progress(text) {
    this.notices.replaceChildren(h("p", { class: "dim running" }, text));
  }

  remember(path, body, state, answer, summary) {
    const { value, milliseconds } = answer;
    const deviceMilliseconds = value.timings?.device_ms;
    const entry = { view: this.view, path, body, state, response: value, milliseconds, deviceMilliseconds, summary };
    this.page.requests.add(entry);
    this.page.announce(summary);
  }

  fail(error) {
    const where = error.param ? ` (${error.param})` : "";
    const id = error.requestId ? `Request ${error.requestId}` : null;
    const technical = [error.status ? `HTTP ${error.status}` : null, error.code || null, id]
      .filter(Boolean)
      .join(" · ");
    this.say("bad", `${error.words}${where}`, error.message, technical);
    this.page.requests.add({
      view: this.view,
      path: "",
      state: null,
      error: `${error.words} ${error.message}`.slice(0, 200),
    });
  }

  say(kind, ...sentences) {
    const [first, ...others] = sentences.filter(Boolean);
    const rest = others.map((text) => h("p", { class: "dim" }, text));
    this.notices.replaceChildren(h("div", { class: `notice ${kind}` }, h("p", {}, first), rest));
  }
}

export function plural(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

// "packed · 12 ms in the browser · device 8 ms · 120 tokens, 40 of them cached"
export function resultLine(answer) {
  const { value, milliseconds } = answer,
    timings = value.timings,
    usage = value.usage;
  const cached = usage?.prompt_tokens_details?.cached_tokens ?? usage?.cached_tokens;
  return [
    value.mode ? `mode ${value.mode}` : null,
    `${Math.round(milliseconds)} ms`,
    timings
      ? `encode ${fixed(timings.encode_ms)}, queue ${fixed(timings.queue_ms)}, device ${fixed(timings.device_ms)} ms`
      : null,
    usage ? `${plural(usage.prompt_tokens, "token")}${cached ? `, ${cached.toLocaleString("en")} cached` : ""}` : null,
  ]
    .filter(Boolean)
    .join(" · ");
}

function fixed(value) {
  return value === undefined || value === null ? "–" : value < 10 ? value.toFixed(1) : String(Math.round(value));
}
