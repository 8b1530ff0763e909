// Streams to watch: several long answers to one question, greedily decoded, which must all be the same text, whatever
// happens to the workers meanwhile.

import { chunks, requestId } from "./api.js";

const TOKENS = 1500;
const PROMPT = "Count from one upwards, in words.";

export class Load {
  constructor({ model, mine, said }) {
    this._model = model; // {id, max_model_len}
    this._mine = mine;
    this._said = said;
    this._running = null;
  }

  get running() {
    return this._running !== null;
  }

  stop() {
    this._running?.abort();
  }

  /** Start `count` streams, and say how they ended. */
  async run(count) {
    const running = this._running = new AbortController();
    const model = this._model();
    const tokens = Math.max(16, Math.min(TOKENS, (model.max_model_len ?? TOKENS) - 256));
    const body = { model: model.id, messages: [{ role: "user", content: PROMPT }], temperature: 0, seed: 1, max_tokens: tokens, ignore_eos: true };
    const ends = { complete: 0, failed: 0 }, texts = new Set();
    this._said(`${count} streams run.`);
    const one = async () => {
      const id = requestId();
      this._mine(id);
      let text = "", tokens = 0;
      try {
        for await (const chunk of chunks(body, id, running.signal)) {
          text += chunk.choices[0]?.delta.content ?? "";
          tokens = chunk.usage?.completion_tokens ?? tokens;
        }
        ends.complete++;
        texts.add(`${tokens} ${text}`);
      } catch (error) {
        if (running.signal.aborted) return;
        ends.failed++;
        this._said(error.message);
      }
      if (!running.signal.aborted) this._said(verdict(count, ends, texts.size));
    };
    await Promise.all(Array.from({ length: count }, one));
    if (running.signal.aborted) this._said("Stopped.");
    if (this._running === running) this._running = null;
  }
}

/** A sentence about the answers that have ended. */
export function verdict(count, { complete, failed }, different) {
  const left = count - complete - failed;
  const same = complete < 2 ? "" : different === 1 ? ", all the same text" : `, ${different} different texts`;
  return `${complete} of ${count} complete${same}${failed ? `; ${failed} failed` : ""}${left ? "" : "."}`;
}
