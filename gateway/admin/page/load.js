// Streams to watch: several long answers to one question, greedily decoded, which must all be the same text, whatever
// happens to the workers meanwhile.

import { chunks, requestId } from "./api.js";

const TOKENS = 1500;
const PROMPT = "Count from one upwards, in words.";
const REQUESTS = 3; // a browser has six connections to a server, and the picture, the chat and a kill need some

/** How many streams each of the requests has. */
export function shares(count) {
  const requests = Math.min(REQUESTS, count);
  return Array.from({ length: requests }, (_, at) => Math.floor((count + at) / requests));
}

/** A sentence about the answers that have ended. */
export function verdict(count, { complete, failed }, different) {
  const left = count - complete - failed;
  const same = complete < 2 ? "" : different === 1 ? ", all the same text" : `, ${different} different texts`;
  return `${complete} of ${count} complete${same}${failed ? `; ${failed} failed` : ""}${left ? "" : "."}`;
}

export class Load {
  /** `model()` is the entry of a model; `mine` gets the ids of the requests, and `said` sentences. */
  constructor({ model, mine, said }) {
    this._model = model;
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
    const { id: model, max_model_len: context } = this._model();
    const body = {
      model, messages: [{ role: "user", content: PROMPT }], temperature: 0, seed: 1, ignore_eos: true,
      max_tokens: Math.max(16, Math.min(TOKENS, (context ?? TOKENS) - 256)),
    };
    const ends = { complete: 0, failed: 0 }, different = new Set();
    let problem = "";
    const say = () => this._said([verdict(count, ends, different.size), problem].filter(Boolean).join(" "));
    this._said(`${count} streams run.`);
    const request = async (n) => {
      const texts = Array(n).fill(""), id = requestId();
      let left = n;
      this._mine(id);
      try {
        for await (const { choices } of chunks({ ...body, n }, id, running.signal)) {
          for (const { index, delta, finish_reason } of choices) {
            texts[index] += delta.content ?? "";
            if (!finish_reason) continue;
            left--;
            ends.complete++;
            different.add(texts[index]);
            say();
          }
        }
      } catch (error) {
        if (running.signal.aborted) return;
        ends.failed += left;
        problem = error.message;
        say();
      }
    };
    await Promise.all(shares(count).map(request));
    if (running.signal.aborted) this._said("Stopped.");
    if (this._running === running) this._running = null;
  }
}
