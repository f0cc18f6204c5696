// How one answer is shown while it comes: thinking, text, calls of tools, tokens, and what it took.
import { make } from "./api.js";

const SHORT = 50; // milliseconds in which no speed is seen: what came, came at once
const BUCKETS = [0.1, 0.3, 0.6, 0.9]; // of probabilities, by colour

export class Answer {
  constructor(answerCall) {
    this.message = { role: "assistant", content: "" };
    this.scores = [];
    this.element = make("article", "", "assistant");
    this.answerCall = answerCall;
    this.started = performance.now();
    this.first = null;
  }

  /** Takes an event of the stream in. */
  take(event) {
    if (event.usage) this.usage = event.usage;
    const [choice] = event.choices;
    if (!choice) return;
    const { delta } = choice;
    if (this.first === null && (delta.content || delta.reasoning || delta.tool_calls)) this.first = performance.now();
    if (delta.reasoning) this.addThinking(delta.reasoning);
    if (delta.content) this.addText(delta.content);
    for (const piece of delta.tool_calls ?? []) this.addCall(piece);
    this.scores.push(...(choice.logprobs?.content ?? []));
    if (choice.finish_reason) this.reason = choice.finish_reason;
  }

  addThinking(text) {
    if (!this.thinking) {
      const details = make("details", "", "thinking");
      details.append(make("summary", "Thinking"), (this.thinking = make("div")));
      this.element.prepend(details);
    }
    this.thinking.append(text);
    this.message.reasoning = (this.message.reasoning ?? "") + text;
  }

  addText(text) {
    if (!this.text) this.element.append((this.text = make("div")));
    this.text.append(text);
    this.message.content += text;
  }

  addCall(piece) {
    const calls = (this.message.tool_calls ??= []);
    if (!calls[piece.index]) {
      const shown = make("div", "", "call");
      const name = make("div", piece.function.name ?? "");
      const given = make("div");
      shown.append(name, given);
      this.element.append(shown);
      calls[piece.index] = { id: piece.id, type: "function", function: { name: piece.function.name, arguments: "" } };
      (this.calls ??= []).push({ shown, given });
    }
    calls[piece.index].function.arguments += piece.function.arguments ?? "";
    this.calls[piece.index].given.textContent = calls[piece.index].function.arguments;
  }

  /** The answer is over, be it by an error. */
  end(error) {
    if (error) this.element.append(make("div", error, "error"));
    const facts = make("div", "", "facts");
    for (const fact of this.facts()) facts.append(make("span", fact));
    if (this.scores.length) facts.append(this.tokensButton());
    this.element.append(facts);
    this.message.tool_calls?.forEach((call, index) => this.askResult(call, this.calls[index].shown));
  }

  *facts() {
    const end = performance.now();
    if (this.first !== null) yield `first token ${Math.round(this.first - this.started)} ms`;
    const count = this.usage?.completion_tokens;
    if (count) yield `${count} tokens`;
    if (count > 1 && this.first !== null && end - this.first > SHORT)
      yield `${((1000 * (count - 1)) / (end - this.first)).toFixed(1)} tokens/s`;
    if (this.usage) yield `prompt ${this.usage.prompt_tokens}`;
    if (this.reason && this.reason !== "stop") yield `ended by ${this.reason}`;
  }

  /** What a tool has brought is typed in by whoever talks. */
  askResult(call, shown) {
    const result = make("textarea");
    result.setAttribute("aria-label", `Result of ${call.function.name}`);
    result.placeholder = "Result of the tool";
    const send = make("button", "Send the result");
    send.addEventListener("click", () => {
      result.disabled = send.disabled = true;
      this.answerCall({ role: "tool", tool_call_id: call.id, name: call.function.name, content: result.value });
    });
    shown.append(result, send);
  }

  tokensButton() {
    const button = make("button", "Tokens");
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => {
      this.tokens ??= this.makeTokens();
      const open = !this.tokens.isConnected;
      button.setAttribute("aria-expanded", String(open));
      if (open) this.element.append(this.tokens);
      else this.tokens.remove();
    });
    return button;
  }

  makeTokens() {
    const all = make("div", "", "tokens");
    const detail = make("div", "", "alternatives");
    detail.setAttribute("aria-live", "polite");
    for (const score of this.scores) {
      const chance = Math.exp(score.logprob);
      const token = make("button", score.token, `p${BUCKETS.filter((bound) => chance >= bound).length}`);
      const show = () => {
        const others = score.top_logprobs.filter((each) => each.token !== score.token);
        detail.textContent = [score, ...others]
          .map((each) => `${JSON.stringify(each.token)} ${(100 * Math.exp(each.logprob)).toFixed(2)} %`).join("   ");
      };
      token.addEventListener("mouseenter", show);
      token.addEventListener("focus", show);
      all.append(token);
    }
    const whole = make("div");
    whole.append(all, detail);
    return whole;
  }
}
