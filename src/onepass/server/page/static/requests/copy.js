// A request and its results as text for elsewhere: CSV, JSON, a curl command, a Python program; and the clipboard.

import { h } from "../dom.js";

export async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Only pages over HTTPS and on this machine have a clipboard; elsewhere a selection can be copied.
    const area = h("textarea", { class: "unseen", value: text });
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    if (!copied) throw new Error("the browser does not let this page copy");
  }
}

// formats: {CSV: () => text, …}. A button per format.
export function copyButtons(page, formats) {
  const button = (name, text) => {
    const copy = async () => {
      try {
        await toClipboard(await text());
        element.textContent = "Copied";
        page.announce(`${name} copied.`);
      } catch (error) {
        element.textContent = "Not copied";
        page.announce(`Not copied: ${error.message}.`);
      }
      setTimeout(() => (element.textContent = name), 1500);
    };
    const element = h(
      "button",
      { type: "button", class: "small", onclick: copy, "aria-label": `Copy as ${name}` },
      name,
    );
    return element;
  };
  const buttons = Object.entries(formats).map(([name, text]) => button(name, text));
  return h("div", { class: "row tools copy" }, h("span", { class: "dim" }, "Copy"), buttons);
}

export function csv(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

export function curl(path, body, hasKey) {
  const key = hasKey ? ` \\\n  -H "Authorization: Bearer $ONEPASS_API_KEY"` : "";
  const quoted = `'${JSON.stringify(body).replaceAll("'", `'\\''`)}'`;
  return `curl ${new URL(path.replace(/^\//, ""), document.baseURI)} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d ${quoted}\n`;
}

// call: the client's method and its arguments by name.
export function python(method, call, hasKey) {
  const url = literal(document.baseURI.split("#")[0].replace(/\/$/, ""));
  const imports = hasKey ? "import os\n\nfrom onepass import Client\n" : "from onepass import Client\n";
  const key = hasKey ? ', api_key=os.environ["ONEPASS_API_KEY"]' : "";
  const given = Object.entries(call)
    .map(([name, value]) => `    ${name}=${literal(value, 1)},\n`)
    .join("");
  return `${imports}\nclient = Client(${url}${key})\nresult = client.${method}(\n${given})\nprint(result)\n`;
}

// A JSON value as Python writes it.
export function literal(value, depth = 0) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const indent = "    ".repeat(depth + 1),
    end = "    ".repeat(depth);
  const parts = Array.isArray(value)
    ? value.map((part) => literal(part, depth + 1))
    : Object.entries(value).map(([key, part]) => `${JSON.stringify(key)}: ${literal(part, depth + 1)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const short = `${open}${parts.join(", ")}${close}`;
  if (short.length <= 80 && !short.includes("\n")) return short;
  return `${open}\n${parts.map((part) => `${indent}${part},\n`).join("")}${end}${close}`;
}
