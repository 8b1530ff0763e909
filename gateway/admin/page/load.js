// Streams to watch: long answers to one question, greedily decoded, which must all be the same text, whatever happens to
// the workers meanwhile.

import { chunks, requestId } from "./api.js";

const TOKENS = 1500;
const PROMPT = "Count from one upwards, in words.";
const REQUESTS = 3; // a browser has six connections to a server, and the picture, the chat and a kill need some

/** How many streams each of the requests has. */
export function shares(count) {
  const requests = Math.min(REQUESTS, count);
  return Array.from({ length: requests }, (_, at) => Math.floor((count + at) / requests));
}

/** A sentence about the answers that have ended; `over`: no more will. */
export function verdict({ complete, failed }, different, over) {
  const same = complete < 2 ? "" : different === 1 ? ", all the same text" : `, ${different} different texts`;
  return `${complete} answer${complete === 1 ? "" : "s"} complete${same}${failed ? `; ${failed} failed` : ""}${over ? "." : ""}`;
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

  /** Let `count` streams run, one answer after the other, for so many seconds and to the end of the last answer. */
  async run(count, seconds) {
    const running = this._running = new AbortController(), { signal } = running;
    const until = performance.now() + 1000 * seconds;
    const { id: model, max_model_len: context } = this._model();
    const body = {
      model, messages: [{ role: "user", content: PROMPT }], temperature: 0, seed: 1, ignore_eos: true,
      max_tokens: Math.max(16, Math.min(TOKENS, (context ?? TOKENS) - 256)),
    };
    const ends = { complete: 0, failed: 0 }, different = new Set();
    let problem = "";
    const say = (over) => this._said([verdict(ends, different.size, over), problem].filter(Boolean).join(" "));
    const request = async (n) => {
      const texts = Array(n).fill(""), id = requestId();
      this._mine(id);
      for await (const { choices } of chunks({ ...body, n }, id, signal)) {
        for (const { index, delta, finish_reason } of choices) {
          texts[index] += delta.content ?? "";
          if (!finish_reason) continue;
          ends.complete++;
          different.add(texts[index]);
          say(false);
        }
      }
    };
    const repeat = async (n) => {
      try {
        do await request(n); while (performance.now() < until);
      } catch (error) {
        if (signal.aborted) return;
        ends.failed++;
        problem = error.message;
      }
    };
    say(false);
    await Promise.all(shares(count).map(repeat));
    say(true);
    if (this._running === running) this._running = null;
  }
}
