// The requests of this tab, newest first, with what they took. Kept in sessionStorage without responses, so that a reload
// keeps the list; responses are kept in memory for the newest few.

const STORED = "onepass-history";
const MAX_ENTRIES = 50;
const MAX_RESPONSES = 5;
const MAX_STORED_CHARACTERS = 1_500_000;

export class RequestHistory {
  constructor() {
    this.entries = stored();
    this.listeners = new Set();
  }

  // entry: {view, state, path, body, response, error, milliseconds, summary}
  add(entry) {
    this.entries.unshift({ ...entry, at: Date.now() });
    this.entries.length = Math.min(this.entries.length, MAX_ENTRIES);
    for (const old of this.entries.slice(MAX_RESPONSES)) delete old.response;
    this.store();
    for (const listener of this.listeners) listener(this.entries[0]);
  }

  last(path) {
    return this.entries.find((entry) => entry.path === path && entry.response !== undefined) ?? null;
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  clear() {
    this.entries = [];
    sessionStorage.removeItem(STORED);
  }

  // Large requests are left out of what a reload brings back: sessionStorage holds a few megabytes.
  store() {
    const kept = [];
    let room = MAX_STORED_CHARACTERS;
    for (const { response, body, ...entry } of this.entries) {
      const text = JSON.stringify(entry);
      room -= text.length;
      if (room < 0) break;
      kept.push(text);
    }
    sessionStorage.setItem(STORED, `[${kept.join(",")}]`);
  }
}

function stored() {
  try {
    return JSON.parse(sessionStorage.getItem(STORED) ?? "[]");
  } catch {
    return [];
  }
}
