// The chat: its messages, the answer that is being generated, and what a person does with them.

import { Refused, chunks, requestId } from "./api.js";
import { $, announce, h } from "./dom.js";
import { TOOLS, examplesOf } from "./examples.js";
import * as history from "./history.js";
import { Answer, toolMessage, userMessage } from "./messages.js";

const SHORT_S = 0.01; // an answer that comes at once, such as a call, has no rate
const NEAR = 80; // pixels from the end within which the log follows an answer

const imagePart = (url) => ({ type: "image_url", image_url: { url } });

/** The messages of a chat as the API takes them. A question that got no answer is left out: templates want turns. */
export function asked(messages, system) {
  const sent = system ? [{ role: "system", content: system }] : [];
  for (const message of messages) {
    const { role, content, calls, id, images } = message;
    if (role === "assistant") {
      if (!content && !calls?.length) continue;
      const tool_calls = calls?.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
      sent.push({ role, content, ...(tool_calls?.length ? { tool_calls } : {}) });
    } else {
      if (role === "user" && sent.at(-1)?.role === "user") sent.pop();
      if (role === "tool") sent.push({ role, tool_call_id: id, content });
      else sent.push({ role, content: images?.length ? [...images.map(imagePart), ...(content ? [{ type: "text", text: content }] : [])] : content });
    }
  }
  return sent;
}

/** Add what a chunk has to a message. */
export function grow(message, { choices, usage }) {
  const [choice] = choices;
  if (choice) {
    const { content, reasoning_content, tool_calls } = choice.delta;
    message.content += content ?? "";
    message.reasoning += reasoning_content ?? "";
    for (const each of tool_calls ?? []) {
      const call = (message.calls[each.index] ??= { id: "", name: "", arguments: "" });
      call.id ||= each.id ?? "";
      call.name += each.function?.name ?? "";
      call.arguments += each.function?.arguments ?? "";
    }
    message.end = choice.finish_reason ?? message.end;
  }
  if (usage) {
    message.tokens = usage.completion_tokens;
    message.prompt = usage.prompt_tokens;
    message.cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  }
}

export class Chat {
  /** `model()` is the chosen one; `mine` gets the ids of this page's requests; `settings` has what is sent along. */
  constructor({ model, settings, mine }) {
    this._model = model;
    this._settings = settings;
    this._mine = mine;
    this._running = null;
    this._log = $("log");
    this._scroller = $("scroller");
    this._log.addEventListener("grown", () => this._follow());
    this._follows = true;
    this._scroller.addEventListener("scroll", () => {
      const { scrollTop, clientHeight, scrollHeight } = this._scroller;
      this._follows = scrollHeight - scrollTop - clientHeight < NEAR;
    });
    this.open(history.newChat());
  }

  get running() {
    return this._running !== null;
  }

  /** Show a chat. An answer that is being generated for another one ends. */
  open(chat) {
    this.stop();
    this.chat = chat;
    this.draw();
  }

  draw() {
    const { messages } = this.chat;
    this._log.replaceChildren(...messages.map((message, index) => this._element(message, index)));
    if (!messages.length) this._welcome();
    document.title = this.chat.title ? `${this.chat.title} - Baton` : "Baton";
    this._follow(true);
  }

  stop() {
    this._running?.abort();
  }

  /** The images of its messages. */
  get images() {
    return this.chat.messages.flatMap(({ images }) => images ?? []);
  }

  /** Send what a person wrote, with images as data URLs. */
  async send(content, images = []) {
    this.chat.messages.push({ role: "user", content, ...(images.length ? { images } : {}) });
    this.chat.title ||= content.slice(0, 60) || "Image";
    this._keep();
    this.draw();
    await this._answer();
  }

  /** Ask again for the last answer. */
  async regenerate() {
    const { messages } = this.chat;
    if (this.running || messages.at(-1)?.role !== "assistant") return;
    messages.pop();
    this.draw();
    await this._answer();
  }

  async _edited(index, content) {
    this.stop();
    const [{ images }] = this.chat.messages.splice(index);
    await this.send(content, images);
  }

  async _resulted(results) {
    const { calls } = this.chat.messages.at(-1);
    this.chat.messages.push(...calls.map((call, index) => ({ role: "tool", id: call.id, content: results[index] })));
    this._keep();
    this.draw();
    await this._answer();
  }

  async _answer() {
    this.stop();
    const chat = this.chat, mine = new AbortController(), id = requestId();
    const before = this._body(chat.messages);
    const message = { role: "assistant", content: "", reasoning: "", calls: [], model: before.model };
    chat.messages.push(message);
    const answer = this._shown(message);
    this._log.append(answer.element);
    answer.changed();
    this._follow(true);
    this._running = mine;
    this._mine(id);
    this._buttons();
    announce("The answer begins.");
    const began = performance.now();
    let first = 0;
    try {
      for await (const chunk of chunks(before, id, mine.signal)) {
        grow(message, chunk);
        if (!first && (message.content || message.reasoning || message.calls.length)) {
          first = performance.now();
          message.first = (first - began) / 1000;
        }
        answer.changed();
      }
      announce("The answer is complete.");
    } catch (error) {
      if (error.name === "AbortError" || mine.signal.aborted) message.end = "stopped";
      else {
        message.error = { text: error.message, code: error.code ?? "error", advice: error instanceof Refused ? error.advice : "" };
        announce(`The answer failed: ${error.message}`);
      }
    } finally {
      if (this._running === mine) this._running = null;
      this._buttons();
      const seconds = (performance.now() - first) / 1000;
      if (message.tokens > 1 && seconds >= SHORT_S) message.rate = (message.tokens - 1) / seconds;
      answer.finish(this.chat === chat);
      if (history.isKept(chat.id)) this._keep(chat);
    }
  }

  _body(messages) {
    const { system, temperature, top_p, max_tokens, seed, tools } = this._settings();
    const body = { model: this._model(), messages: asked(messages, system) };
    for (const [name, value] of Object.entries({ temperature, top_p, max_tokens, seed })) {
      if (value !== undefined && value !== "") body[name] = Number(value);
    }
    if (tools) body.tools = JSON.parse(tools);
    return body;
  }

  _keep(chat = this.chat) {
    if (!history.keep(chat)) announce("The browser has no room to keep this chat.");
  }

  _element(message, index) {
    if (message.role === "user") return userMessage(message, (text) => this._edited(index, text));
    if (message.role === "tool") return toolMessage(message);
    const answer = this._shown(message);
    answer.finish(index === this.chat.messages.length - 1);
    return answer.element;
  }

  _shown(message) {
    return new Answer(message, { onRegenerate: () => this.regenerate(), onResults: (results) => this._resulted(results) });
  }

  _welcome() {
    const model = this._model();
    const { about, tries } = examplesOf(model);
    this._log.append(h("div", { class: "welcome" },
      h("h2", {}, model ? `Talk to ${model}` : "No model is there yet"),
      h("p", { class: "note" }, about),
      h("div", { class: "tries" }, ...(model ? tries : []).map(({ text, tools }) =>
        h("button", { type: "button", onclick: () => {
          if (tools && !this._settings().tools) $("log").dispatchEvent(new CustomEvent("tools", { detail: JSON.stringify(TOOLS, null, 1), bubbles: true }));
          this.send(text);
        } }, text, tools ? h("span", { class: "note" }, " with tools") : null)))));
  }

  _buttons() {
    $("go").textContent = this.running ? "Stop" : "Send";
    $("go").classList.toggle("stop", this.running);
  }

  _follow(always = false) {
    if (always) this._follows = true;
    if (this._follows) this._scroller.scrollTop = this._scroller.scrollHeight;
  }
}
