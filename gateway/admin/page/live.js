// The picture's data: snapshots of the server, the figures that follow from them, and what happened between two.

import { Refused, ask, events, pause } from "./api.js";

const WINDOW_S = 2; // of the rate of tokens

/** Snapshots as they come, for as long as the page is visible. `failed(error)` is called while there are none. After an
 * event `keys` of the document it asks again at once. */
export async function watch(took, failed) {
  let wait = 500;
  for (;;) {
    if (document.hidden) {
      await new Promise((go) => document.addEventListener("visibilitychange", go, { once: true }));
      continue;
    }
    const visible = new AbortController();
    const hide = () => { if (document.hidden) visible.abort(); };
    document.addEventListener("visibilitychange", hide);
    try {
      const response = await ask("/admin/live", { signal: visible.signal });
      for await (const event of events(response)) {
        wait = 500;
        took(JSON.parse(event.data));
      }
    } catch (error) {
      if (error.name !== "AbortError") failed(error instanceof Refused ? error : new Refused("The connection is lost.", "connection_lost"));
    } finally {
      document.removeEventListener("visibilitychange", hide);
    }
    await Promise.race([pause(wait), new Promise((go) => document.addEventListener("keys", go, { once: true }))]);
    wait = Math.min(2 * wait, 5000);
  }
}

const sum = (values) => values.reduce((total, each) => total + each, 0);

/** What two snapshots differ in, and rates over the last seconds. */
export class Changes {
  constructor() {
    this._samples = []; // the time and the tokens of each worker
    this._before = null;
  }

  /** Returns `{rate, rates, happened}`: tokens a second in all and by worker, and sentences. `now` is in seconds. */
  take(snapshot, now) {
    const other = this._before && this._before.gateway !== snapshot.gateway;
    if (other) this._samples = [];
    const tokens = new Map(snapshot.workers.map(({ name, decode_tokens }) => [name, decode_tokens]));
    this._samples.push({ now, tokens });
    while (this._samples.length > 2 && now - this._samples[0].now > WINDOW_S) this._samples.shift();
    const [first] = this._samples;
    const seconds = now - first.now;
    const rates = new Map([...tokens].map(([name, count]) =>
      [name, seconds > 0 ? Math.max(0, count - (first.tokens.get(name) ?? count)) / seconds : 0]));
    const happened = other ? [`Another gateway, process ${snapshot.gateway}, has taken over.`]
      : this._before ? happenings(this._before, snapshot) : [];
    this._before = snapshot;
    return { rate: sum([...rates.values()]), rates, happened };
  }
}

const STATES = {
  starting: "starts", loading: "loads its model", ready: "is ready", draining: "finishes its streams",
  backoff: "has ended and is started again", stopped: "was stopped", given_up: "was given up",
};

const streams = (count) => (count === 1 ? "1 stream" : `${count} streams`);

/** Sentences about what happened between two snapshots. */
export function happenings(before, after) {
  const found = [];
  const old = new Map(before.workers.map((worker) => [worker.name, worker]));
  for (const worker of after.workers) {
    const was = old.get(worker.name);
    if (!was) found.push(`Worker ${worker.name} is new.`);
    else if (was.state !== worker.state || was.incarnation !== worker.incarnation) {
      const why = worker.reason && worker.state !== "ready" ? `: ${worker.reason}` : "";
      found.push(`Worker ${worker.name} ${STATES[worker.state] ?? worker.state}${why}.`);
    }
  }
  const placed = new Map(before.streams.map((stream) => [stream.id, stream.worker]));
  const moves = new Map();
  let queued = 0;
  for (const { id, worker } of after.streams) {
    const from = placed.get(id);
    if (from && worker && from !== worker) {
      const way = `from ${from} to ${worker}`;
      moves.set(way, (moves.get(way) ?? 0) + 1);
    } else if (from && !worker) queued++;
  }
  for (const [way, count] of moves) found.push(`${streams(count)} moved ${way}.`);
  if (queued) found.push(`${streams(queued)} lost ${queued === 1 ? "its worker and waits" : "their worker and wait"} for another one.`);
  return found;
}
