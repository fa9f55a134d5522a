// The link that holds a whole request: the view's name and its form, as compressed JSON in the URL's fragment, which a
// browser never sends to a server. #score is a view; #score=… a view with its form filled.

export async function linkTo(name, state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  const packed = await through(bytes, new CompressionStream("deflate-raw"));
  return `${location.href.split("#")[0]}#${name}=${base64(packed)}`;
}

export function viewOf(fragment) {
  return decodeURIComponent(fragment.replace(/^#/, "").split("=")[0]);
}

// null where the fragment has no form, or one that is damaged.
export async function stateOf(fragment) {
  const text = fragment.replace(/^#/, "").split("=").slice(1).join("=");
  if (!text) return null;
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
  return JSON.parse(new TextDecoder().decode(await through(bytes, new DecompressionStream("deflate-raw"))));
}

async function through(bytes, transform) {
  const stream = new Blob([bytes]).stream().pipeThrough(transform);
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// URL-safe, without padding; in pieces, for a call takes only so many arguments.
function base64(bytes) {
  let binary = "";
  for (let at = 0; at < bytes.length; at += 8192) binary += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
