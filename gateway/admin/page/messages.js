// One message of a chat as an element.

import { copyButton, h } from "./dom.js";
import { sampleResult } from "./examples.js";
import { thumbnails } from "./images.js";
import { render } from "./markdown.js";

const pretty = (text) => {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // unfinished, or no JSON
  }
};

/** What a person wrote. `onEdit(text)` sends it again. */
export function userMessage(message, onEdit) {
  const { images, left } = message;
  const text = h("div", { class: "bubble" }, images?.length ? thumbnails(images) : null, message.content,
    left ? h("span", { class: "note" }, ` ${left} of its images were not kept`) : null);
  const edit = h("button", { type: "button", class: "small", onclick: () => element.replaceWith(editor()) }, "Edit");
  const element = h("article", { class: "user", "aria-label": "You" }, text, h("footer", {}, edit));

  function editor() {
    const area = h("textarea", { value: message.content, rows: 3, "aria-label": "Edit your message" });
    const back = () => { form.replaceWith(element); edit.focus(); };
    const form = h("form", { class: "user editor", onsubmit: (event) => {
      event.preventDefault();
      if (area.value.trim() || images?.length) onEdit(area.value.trim());
    } }, area, h("footer", {}, h("button", { type: "button", class: "small", onclick: back }, "Cancel"),
      h("button", { class: "small primary" }, "Send again")));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); back(); }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
    });
    queueMicrotask(() => area.focus());
    return form;
  }
  return element;
}

/** The result of a tool. */
export function toolMessage(message) {
  return h("article", { class: "tool", "aria-label": "Result of a tool" },
    h("details", {}, h("summary", {}, "Result of the tool"), h("pre", { tabIndex: 0 }, pretty(message.content))));
}

/** An answer, which grows. */
export class Answer {
  constructor(message, { onRegenerate, onResults }) {
    this.message = message;
    this._onRegenerate = onRegenerate;
    this._onResults = onResults;
    this._reasoning = h("pre");
    this._thought = h("summary", {}, "Reasoning");
    this._folded = h("details", { class: "reasoning", hidden: true }, this._thought, this._reasoning);
    this._content = h("div", { class: "markdown" });
    this._calls = h("div", { class: "calls" });
    this._footer = h("footer");
    this.element = h("article", { class: "assistant", "aria-label": "Answer" },
      this._folded, this._content, this._calls, this._footer);
    this._soon = 0;
    this._finished = false;
    this._spent = 0;
  }

  /** Show what came, soon: the more expensive, the more seldom. */
  changed() {
    this.element.setAttribute("aria-busy", "true");
    this._soon ||= setTimeout(() => requestAnimationFrame(() => {
      this._soon = 0;
      if (!this._finished) this.draw();
    }), Math.min(500, 8 * this._spent));
  }

  draw() {
    const began = performance.now();
    const { content, reasoning, calls } = this.message;
    this._folded.hidden = !reasoning;
    if (reasoning) this._reasoning.textContent = reasoning;
    this._content.replaceChildren(render(content));
    this._calls.replaceChildren(...(calls ?? []).map((call) => this._call(call)));
    this._spent = performance.now() - began;
    this.element.dispatchEvent(new Event("grown", { bubbles: true }));
  }

  /** Show it as it is at its end. `last`: it is the last message of the chat. */
  finish(last) {
    this._finished = true;
    this.element.removeAttribute("aria-busy");
    this.draw();
    const { message } = this;
    const about = [];
    if (message.tokens !== undefined) about.push(`${message.tokens} tokens`);
    if (message.rate) about.push(`${message.rate.toFixed(1)} tokens/s`);
    if (message.first !== undefined) about.push(`first after ${message.first.toFixed(2)} s`);
    if (message.cached) about.push(`${message.cached} of ${message.prompt} prompt tokens cached`);
    if (message.end === "length") about.push("ended by its limit");
    if (message.end === "stopped") about.push("stopped");
    const answering = last && message.calls?.length > 0;
    this._footer.replaceChildren(
      h("span", { class: "note" }, about.join(" · ")),
      ...(message.content ? [copyButton(() => message.content, "Copy this answer")] : []),
      ...(last ? [h("button", { type: "button", class: "small", onclick: this._onRegenerate }, "Regenerate")] : []));
    if (message.error) {
      const { text, code, advice } = message.error;
      this._content.after(h("p", { class: "error", role: "alert" }, h("strong", {}, code), ` ${text} `, h("span", {}, advice)));
    }
    if (answering) this._calls.append(this._results());
  }

  _call({ name, arguments: given }) {
    return h("details", { class: "call" }, h("summary", {}, "Calls ", h("code", {}, name || "…")),
      h("pre", { tabIndex: 0 }, pretty(given)));
  }

  _results() {
    const areas = this.message.calls.map((call) =>
      h("textarea", { rows: 2, value: sampleResult(call), "aria-label": `Result of ${call.name}` }));
    return h("form", { class: "results", onsubmit: (event) => {
      event.preventDefault();
      this._onResults(areas.map((area) => area.value));
    } }, h("p", {}, "You are the tool: what does it return?"), ...areas, h("button", { class: "small primary" }, "Send the result"));
  }
}
