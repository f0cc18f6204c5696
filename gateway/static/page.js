// The page: a conversation with the model, and the fleet behind it.
import { Answer } from "./answer.js";
import { call, events, make } from "./api.js";
import { look } from "./fleet.js";

const SETTINGS = "quire-settings";
const byId = (id) => document.getElementById(id);
const controls = [...document.querySelectorAll("[data-setting]")];
let messages = [];
let answers = []; // elements, one for each message
let running = null; // stops the answer that is coming

// ---- Settings: kept by the browser, but for the key.
const saved = JSON.parse(localStorage.getItem(SETTINGS) ?? "{}");
for (const control of controls) {
  const value = saved[control.dataset.setting];
  if (control.type === "checkbox") control.checked = Boolean(value);
  else if (value !== undefined) control.value = value;
  control.addEventListener("change", () => localStorage.setItem(SETTINGS, JSON.stringify(settings())));
}
const settings = () => Object.fromEntries(
  controls.map((control) => [control.dataset.setting, control.type === "checkbox" ? control.checked : control.value]),
);

const requestBody = () => {
  const chosen = settings();
  const body = { model: byId("model").value, messages: [...messages], stream: true, stream_options: { include_usage: true } };
  if (chosen.system) body.messages.unshift({ role: "system", content: chosen.system });
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"])
    if (chosen[name] !== "") body[name] = Number(chosen[name]);
  if (chosen.logprobs) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  if (chosen.tools.trim()) body.tools = JSON.parse(chosen.tools);
  return body;
};

// ---- The conversation.
const show = (message, element) => {
  messages.push(message);
  answers.push(element);
  byId("conversation").append(element);
  element.scrollIntoView({ block: "end" });
};

const setRunning = (controller) => {
  running = controller;
  byId("send").hidden = Boolean(controller);
  byId("stop").hidden = !controller;
  byId("retry").disabled = Boolean(controller) || !messages.some((message) => message.role === "user");
};

const generate = async () => {
  const controller = new AbortController();
  const answer = new Answer(async (result) => {
    show(result, make("article", result.content, "tool"));
    const open = messages.findLast((message) => message.tool_calls).tool_calls;
    const given = new Set(messages.filter((message) => message.role === "tool").map((message) => message.tool_call_id));
    if (open.every((each) => given.has(each.id))) await generate();
  });
  let failure = "";
  try {
    const body = requestBody();
    setRunning(controller);
    show(answer.message, answer.element);
    for await (const event of events(await call("v1/chat/completions", body, controller.signal))) {
      answer.take(event);
      answer.element.scrollIntoView({ block: "end" });
    }
  } catch (error) {
    failure = error.name === "AbortError" ? "" : error.message;
    if (!answer.element.isConnected) show(answer.message, answer.element);
    if (error.name === "AbortError") answer.reason = "you";
  }
  answer.end(failure);
  setRunning(null);
};

const send = () => {
  const text = byId("prompt").value.trim();
  if (!text || running) return;
  byId("prompt").value = "";
  show({ role: "user", content: text }, make("article", text, "user"));
  generate();
};

const retry = () => {
  if (running) return;
  const last = messages.findLastIndex((message) => message.role === "user");
  if (last < 0) return;
  for (const element of answers.splice(last + 1)) element.remove();
  messages = messages.slice(0, last + 1);
  generate();
};

byId("ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
byId("stop").addEventListener("click", () => running?.abort());
byId("retry").addEventListener("click", retry);
byId("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  answers = [];
  byId("conversation").replaceChildren();
  byId("retry").disabled = true;
  byId("prompt").focus();
});

// ---- The views.
const tabs = [...document.querySelectorAll("[role=tab]")];
let looking = null;
const choose = (chosen) => {
  for (const tab of tabs) {
    const isChosen = tab === chosen;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !isChosen;
  }
  clearInterval(looking);
  const lookNow = () => look().catch((error) => { byId("fleet-note").textContent = error.message; });
  if (chosen.id === "tab-fleet") { lookNow(); looking = setInterval(lookNow, 1000); }
};
for (const [index, tab] of tabs.entries()) {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(index + step + tabs.length) % tabs.length];
    next.focus();
    choose(next);
  });
}

// ---- The models: adapters are among them.
const listModels = async () => {
  const { data } = await (await call("v1/models")).json();
  byId("model").replaceChildren(...data.map((card) => {
    const choice = make("option", card.parent ? `${card.id} (on ${card.parent})` : card.id);
    choice.value = card.id;
    return choice;
  }));
};
listModels().catch((error) => byId("conversation").append(make("article", error.message, "assistant error")));
byId("prompt").focus();
