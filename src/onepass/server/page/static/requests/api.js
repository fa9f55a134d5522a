// Requests to the server: the API key, errors in words, and retries where the server says that a later try may succeed.

const KEY = "onepass-api-key"; // in sessionStorage: gone when the tab is closed, never in a link or in the history
const MAX_RETRIES = 8;
const MAX_WAIT_SECONDS = 60;
const RETRIED = new Set([429, 502, 503]); // 502: a proxy whose server restarts

export class ApiError extends Error {
  constructor(message, { status = 0, code = "", param = null, retryAfter = null, requestId = null } = {}) {
    super(message);
    Object.assign(this, { status, code, param, retryAfter, requestId });
  }

  get words() {
    const cause = {
      0: "The server could not be reached.",
      401: "The server asks for an API key.",
      404: "The server does not have this.",
      408: "The request arrived too slowly.",
      413: "The request is too large.",
      429: "The server has too much waiting.",
      500: "The server failed.",
      502: "A proxy could not reach the server.",
      503: "The engine is not ready.",
      504: "The request took longer than its time limit.",
    }[this.status];
    return cause ?? (this.status >= 500 ? "The server failed." : "The server refused the request.");
  }
}

export class Api {
  constructor() {
    this.onKeyWanted = () => {};
    this.onFailure = () => {}; // an error that is retried: (error, seconds)
  }

  get key() {
    return sessionStorage.getItem(KEY) ?? "";
  }

  set key(value) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  }

  // Without a body a request is a GET. `wait(error, seconds)` is told of each retry; `signal` stops all of it.
  async send(path, { body = null, signal = null, wait = () => {}, retries = MAX_RETRIES } = {}) {
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await this.once(path, body, signal);
      } catch (error) {
        const retried = error instanceof ApiError && (RETRIED.has(error.status) || error.status === 0);
        if (!retried || error.code === "draining" || attempt >= retries) throw error;
        const seconds = Math.min(MAX_WAIT_SECONDS, error.retryAfter ?? 2 ** Math.min(attempt, 4) / 2);
        this.onFailure(error, seconds);
        wait(error, seconds);
        await pause(seconds * 1000, signal);
      }
    }
  }

  post(path, body, options = {}) {
    return this.send(path, { ...options, body });
  }

  async get(path, options = {}) {
    return (await this.send(path, options)).value;
  }

  // One try: {value, milliseconds, requestId}. `value` is JSON, or text where the answer is not JSON.
  async once(path, body, signal) {
    const headers = { accept: "application/json" };
    if (this.key) headers.authorization = `Bearer ${this.key}`;
    if (body !== null) headers["content-type"] = "application/json";
    const began = performance.now();
    let response, text;
    try {
      const method = body === null ? "GET" : "POST";
      const sent = body === null ? undefined : JSON.stringify(body);
      response = await fetch(path.replace(/^\//, ""), { method, headers, body: sent, signal, cache: "no-store" });
      text = await response.text();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("no answer came; is the server still running?");
    }
    const milliseconds = performance.now() - began;
    const requestId = response.headers.get("x-request-id");
    if (response.ok) return { value: parsed(response, text), milliseconds, requestId };
    const error = errorOf(response, text, requestId);
    if (error.status === 401) this.onKeyWanted(error);
    throw error;
  }
}

function parsed(response, text) {
  return (response.headers.get("content-type") ?? "").includes("json") ? JSON.parse(text) : text;
}

function errorOf(response, text, requestId) {
  const after = Number.parseFloat(response.headers.get("retry-after"));
  const about = { status: response.status, requestId, retryAfter: Number.isFinite(after) ? after : null };
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    error = { message: text.slice(0, 500) };
  }
  if (typeof error === "string") error = { message: error };
  return new ApiError(error.message ?? response.statusText, { ...about, code: error.code ?? "", param: error.param });
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(new DOMException("stopped", "AbortError"));
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    });
  });
}
