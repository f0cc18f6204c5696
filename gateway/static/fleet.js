// The second view: the workers, and curves of the last minutes.
import { call, make } from "./api.js";

const KEPT = 120; // samples, one a second
const CURVES = {
  "Generated tokens/s": (now, before) => (before ? Math.max(0, now.generated - before.generated) / (now.time - before.time) : 0),
  "Running sequences": (now) => now.running,
  "Waiting requests": (now) => now.waiting,
  "KV cache used": (now) => now.kv,
};
const samples = Object.fromEntries(Object.keys(CURVES).map((name) => [name, []]));
let before = null;

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const sum = (workers, field) => workers.reduce((total, worker) => total + worker[field], 0);

const row = (worker) => {
  const cells = [
    worker.address, worker.reason ? `${worker.state}: ${worker.reason}` : worker.state, worker.models[0] ?? "",
    worker.adapters.join(", "), worker.running_sequences, worker.waiting_requests, percent(worker.kv_usage),
    worker.prefix_cache_queries ? percent(worker.prefix_cache_hits / worker.prefix_cache_queries) : "–",
    worker.prefill_tokens_per_second ? Math.round(worker.prefill_tokens_per_second).toLocaleString() : "–",
    worker.seconds_per_step ? `${(1000 * worker.seconds_per_step).toFixed(1)} ms` : "–",
  ];
  const made = make("tr");
  made.append(...cells.map((text) => make("td", String(text))));
  return made;
};

const draw = (name, values) => {
  const figure = make("figure");
  const caption = make("figcaption", name);
  const last = values.at(-1) ?? 0;
  const most = Math.max(...values, 1e-9);
  caption.append(make("b", name === "KV cache used" ? percent(last) : last >= 100 || Number.isInteger(last) ? Math.round(last).toLocaleString() : last.toFixed(1)));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${KEPT - 1} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${name} over the last ${values.length} seconds, at most ${most.toFixed(1)}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const offset = KEPT - values.length;
  line.setAttribute("points", values.map((value, index) => `${offset + index},${98 - (96 * value) / most}`).join(" "));
  svg.append(line);
  figure.append(caption, svg);
  return figure;
};

/** Looks once, and shows what it sees. */
export const look = async () => {
  const { workers } = await (await call("fleet")).json();
  const now = {
    time: performance.now() / 1000, generated: sum(workers, "generation_tokens"), running: sum(workers, "running_sequences"),
    waiting: sum(workers, "waiting_requests"), kv: workers.length ? sum(workers, "kv_usage") / workers.length : 0,
  };
  for (const [name, value] of Object.entries(CURVES)) {
    samples[name].push(value(now, before));
    if (samples[name].length > KEPT) samples[name].shift();
  }
  before = now;
  document.getElementById("workers").replaceChildren(...workers.map(row));
  document.getElementById("curves").replaceChildren(...Object.entries(samples).map(([name, values]) => draw(name, values)));
  document.getElementById("fleet-note").textContent = workers.length ? "" : "No worker is known yet.";
};
