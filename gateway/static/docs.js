"use strict";
// Shows openapi.json and sends requests from the page.
const examples = {
  "/v1/chat/completions": { messages: [{ role: "user", content: "Hello!" }], max_tokens: 32 },
  "/v1/completions": { prompt: "Hello", max_tokens: 16 },
  "/v1/chat/completions/batch": { messages: [[{ role: "user", content: "Hello!" }]], max_tokens: 32 },
  "/invocations": { prompt: "Hello", max_tokens: 16 },
  "/tokenize": { prompt: "Hello" },
  "/detokenize": { tokens: [1, 2, 3] },
};
const element = (tag, text, kind) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
};
const typeOf = (schema) => {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" | ");
  if (schema.type === "array") return `list of ${typeOf(schema.items || {})}`;
  return schema.type || "any";
};
const fieldsOf = (root, ref) => {
  const table = element("table");
  const schema = root.components.schemas[ref.$ref.split("/").pop()];
  for (const [name, field] of Object.entries(schema.properties)) {
    const row = table.insertRow();
    row.insertCell().textContent = name + ((schema.required || []).includes(name) ? " *" : "");
    row.insertCell().textContent = typeOf(field);
  }
  return table;
};
const send = async (path, method, body, output) => {
  const headers = {};
  const key = document.getElementById("key").value;
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  output.textContent = "…";
  try {
    const answer = await fetch(path.slice(1), { method, headers, body });
    const text = await answer.text();
    let shown = text;
    try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: shown as it is */ }
    output.textContent = `${answer.status}\n${shown}`;
  } catch (error) {
    output.textContent = String(error);
  }
};
const show = (root, path, method, operation) => {
  const box = element("details");
  const head = element("summary");
  head.append(element("span", method, "method"), element("code", path), ` ${operation.summary}`);
  box.append(head);
  const request = operation.requestBody?.content["application/json"].schema;
  const input = element("textarea");
  if (request) {
    for (const each of request.anyOf || [request]) box.append(fieldsOf(root, each));
    input.rows = 6;
    input.value = JSON.stringify(examples[path] || {}, null, 2);
    box.append(input);
  }
  const parameters = (operation.parameters || []).map(({ name }) => {
    const value = element("input");
    value.placeholder = name;
    box.append(value);
    return [name, value];
  });
  const filled = () =>
    parameters.reduce((text, [name, { value }]) => text.replace(`{${name}}`, encodeURIComponent(value)), path);
  const button = element("button", "Send");
  const output = element("pre");
  button.onclick = () => send(filled(), method.toUpperCase(), request ? input.value : undefined, output);
  box.append(button, output);
  document.getElementById("operations").append(box);
};
fetch("openapi.json")
  .then((answer) => answer.json())
  .then((root) => {
    for (const [path, methods] of Object.entries(root.paths))
      for (const [method, operation] of Object.entries(methods)) show(root, path, method, operation);
  });
