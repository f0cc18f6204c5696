// The server, asked with a key where it wants one. Nothing is sent to anywhere else.
const KEY = "quire-key";
let asking = null;

/** An element with text, which is never read as HTML. */
export const make = (tag, text = "", kind = "") => {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  if (kind) made.className = kind;
  return made;
};

/** Asks for a key once, however many calls wait for it. */
const askKey = () => {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("key-dialog");
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(KEY, document.getElementById("key").value);
      asking = null;
      resolve();
    }, { once: true });
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    if (!dialog.open) dialog.showModal();
  });
  return asking;
};

/** An answer of the server; throws what it says is wrong. */
export const call = async (path, body, signal) => {
  for (;;) {
    const headers = {};
    const key = sessionStorage.getItem(KEY);
    if (key) headers.authorization = `Bearer ${key}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    const method = body === undefined ? "GET" : "POST";
    const answer = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
    if (answer.status === 401) {
      sessionStorage.removeItem(KEY);
      await askKey();
      continue;
    }
    if (!answer.ok) {
      const told = await answer.json().catch(() => ({}));
      throw new Error(told.error?.message ?? `HTTP status ${answer.status}`);
    }
    return answer;
  }
};

/** The events of a stream, parsed. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ") || part === "data: [DONE]") continue;
      const event = JSON.parse(part.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}
