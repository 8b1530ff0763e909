// The living picture: the gateway with its queue, the workers with their slots, and each stream as a coloured cell that
// moves to another worker when it has to.

import { $, h } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const MANY_SLOTS = 16; // more are drawn small
const POINTS = 120; // of the curve
const KINDS = { ready: "good", draining: "busy", starting: "busy", loading: "busy", backoff: "bad", given_up: "bad", stopped: "off" };

/** Places of streams in the cells of one worker: a stream keeps its cell for as long as it is there. */
export class Cells {
  constructor() {
    this._cells = [];
  }

  /** The cell of each of these streams. The list has at least `slots` cells; those beyond are for streams that wait. */
  place(ids, slots) {
    const here = new Set(ids);
    this._cells = this._cells.map((id) => (here.has(id) ? id : null));
    const known = new Set(this._cells);
    const fresh = ids.filter((id) => !known.has(id));
    while (this._cells.length < slots) this._cells.push(null);
    for (let at = 0; at < this._cells.length && fresh.length; at++) this._cells[at] ??= fresh.shift();
    this._cells.push(...fresh);
    while (this._cells.length > slots && this._cells.at(-1) === null) this._cells.pop();
    return this._cells;
  }
}

export class Picture {
  /** `onKill(name)` is called when a person kills a worker; `isMine(request)` tells this page's streams. */
  constructor({ onKill, isMine }) {
    this._onKill = onKill;
    this._isMine = isMine;
    this._stage = $("stage");
    this._wires = $("wires");
    this._workers = new Map();
    this._streams = new Map();
    this._queue = new Cells();
    this._rates = [];
    this._latest = null;
    new ResizeObserver(() => this._latest && this._place(this._latest, false)).observe(this._stage);
  }

  /** Draw a snapshot. */
  draw(snapshot, { rate, rates }) {
    if (this._latest && this._latest.gateway !== snapshot.gateway) this._forget();
    this._latest = snapshot;
    this._numbers(snapshot, rate);
    this._drawWorkers(snapshot, rates);
    this._place(snapshot, true);
  }

  /** Another gateway numbers its streams anew. */
  _forget() {
    for (const { element } of this._streams.values()) element.remove();
    this._streams.clear();
    this._queue = new Cells();
    for (const shown of this._workers.values()) shown.cells = new Cells();
  }

  _numbers(snapshot, rate) {
    const total = (field) => snapshot.workers.reduce((sum, worker) => sum + worker[field], 0);
    const waiting = snapshot.models.reduce((sum, model) => sum + model.waiting, 0);
    const figures = {
      rate: rate.toFixed(rate < 10 ? 1 : 0), streams: snapshot.streams.length + snapshot.streams_left_out, waiting,
      replays: snapshot.replays, hits: total("prefix_hits"), restarts: total("restarts"),
    };
    for (const [name, value] of Object.entries(figures)) $(`n-${name}`).textContent = value;
    $("queue-length").textContent = waiting ? `${waiting} waiting` : "queue empty";
    this._rates = [...this._rates, rate].slice(-POINTS);
    const most = Math.max(1, ...this._rates);
    $("curve").setAttribute("points", this._rates
      .map((each, at) => `${(at + POINTS - this._rates.length) * (100 / (POINTS - 1))},${28 - (26 * each) / most}`).join(" "));
  }

  _drawWorkers({ workers, streams }, rates) {
    const names = new Set(workers.map(({ name }) => name));
    for (const [name, shown] of this._workers) {
      if (names.has(name)) continue;
      shown.card.remove();
      shown.wire.remove();
      this._workers.delete(name);
    }
    for (const worker of workers) {
      const shown = this._workers.get(worker.name) ?? this._newWorker(worker.name);
      const kind = KINDS[worker.state] ?? "busy";
      const here = streams.filter((stream) => stream.worker === worker.name).length;
      const rate = rates.get(worker.name) ?? 0;
      if (shown.incarnation && (worker.incarnation !== shown.incarnation || (kind === "bad" && shown.kind !== "bad"))) shown.flash();
      shown.incarnation = worker.incarnation;
      shown.kind = kind;
      shown.card.dataset.kind = kind;
      shown.state.textContent = [worker.state.replace("_", " "), worker.role, worker.phases]
        .filter((word) => word !== "active" && word !== "both").join(", ");
      shown.load.textContent = `${Math.min(here, worker.slots)} of ${worker.slots} slots` +
        (here > worker.slots ? `, ${here - worker.slots} wait` : "");
      const where = [worker.model, worker.backend, worker.device, worker.address].filter(Boolean).join(" · ");
      const memory = worker.memory_bytes ? `${Math.round(worker.memory_bytes / 2 ** 20)} MiB` : "";
      const restarts = worker.restarts ? `${worker.restarts} restart${worker.restarts === 1 ? "" : "s"}` : "";
      const pid = worker.pid ? `pid ${worker.pid}` : "no process";
      shown.about.textContent = [where, pid, memory, restarts].filter(Boolean).join(" · ");
      shown.reason.textContent = worker.state === "ready" ? "" : worker.reason;
      shown.kill.disabled = worker.pid === null || worker.address !== null;
      shown.wire.classList.toggle("flowing", rate > 0.5);
      shown.wire.style.setProperty("--speed", `${Math.max(0.15, 3 / Math.sqrt(1 + rate / 10)).toFixed(2)}s`);
    }
  }

  _newWorker(name) {
    const part = (kind) => h("span", { class: kind });
    const shown = { name, state: part("state"), load: part("load"), about: h("p", { class: "note" }), reason: h("p", { class: "reason" }),
      slots: h("div", { class: "slots", "aria-hidden": "true" }), cells: new Cells(), incarnation: 0, kind: "" };
    shown.kill = h("button", { type: "button", class: "small danger", "aria-label": `Kill worker ${name}`,
      onclick: () => this._onKill(name) }, "Kill");
    shown.card = h("article", { class: "worker", "aria-label": `Worker ${name}` },
      h("header", {}, h("h3", {}, name), shown.state, shown.kill), shown.slots, h("p", {}, shown.load), shown.about, shown.reason);
    shown.flash = () => {
      shown.card.classList.remove("struck");
      void shown.card.offsetWidth; // begin the animation anew
      shown.card.classList.add("struck");
    };
    shown.wire = document.createElementNS(SVG, "path");
    this._wires.append(shown.wire);
    $("workers").append(shown.card);
    this._workers.set(name, shown);
    return shown;
  }

  /** Put every stream into its cell; `moves` is false after a change of the size, when nothing moves. */
  _place(snapshot, moves) {
    const cells = new Map(); // the element of each stream's cell
    for (const worker of snapshot.workers) {
      const shown = this._workers.get(worker.name);
      const ids = snapshot.streams.filter((stream) => stream.worker === worker.name).map(({ id }) => id);
      fill(shown.slots, shown.cells.place(ids, worker.slots), worker.slots, cells);
      shown.slots.classList.toggle("small", worker.slots > MANY_SLOTS);
    }
    const waiting = snapshot.streams.filter(({ worker }) => !this._workers.has(worker)).map(({ id }) => id);
    fill($("queue"), this._queue.place(waiting, 0), 0, cells);
    const origin = this._stage.getBoundingClientRect();
    const gateway = $("gateway").getBoundingClientRect();
    const boxes = new Map([...cells].map(([id, cell]) => [id, cell.getBoundingClientRect()]));
    this._drawWires(origin, gateway);
    const fresh = snapshot.streams.filter(({ id }) => !this._streams.has(id));
    for (const stream of fresh) this._streams.set(stream.id, newStream(stream, origin, gateway));
    if (fresh.length) void this._stage.offsetWidth; // they begin at the gateway, so that their way is drawn
    const now = performance.now(), seen = new Set();
    for (const stream of snapshot.streams) {
      seen.add(stream.id);
      const box = boxes.get(stream.id), shown = this._streams.get(stream.id), { element } = shown;
      if (shown.worker !== stream.worker) {
        shown.moved = now;
        element.dataset.moves = Number(element.dataset.moves ?? 0) + (stream.worker !== null);
      }
      shown.worker = stream.worker;
      element.dataset.worker = stream.worker ?? "";
      element.classList.toggle("moving", now - shown.moved < 900);
      element.classList.toggle("mine", stream.request !== null && this._isMine(stream.request));
      element.classList.toggle("begins", stream.tokens === 0);
      element.classList.toggle("still", !moves);
      element.style.width = `${box.width}px`;
      element.style.height = `${box.height}px`;
      element.style.transform = `translate(${box.left - origin.left}px, ${box.top - origin.top}px)`;
      const text = box.width > 20 ? String(stream.tokens) : "";
      if (element.textContent !== text) element.textContent = text;
    }
    for (const [id, { element }] of this._streams) {
      if (seen.has(id)) continue;
      this._streams.delete(id);
      element.classList.add("ended");
      setTimeout(() => element.remove(), 500);
    }
  }

  _drawWires(origin, gateway) {
    const x = gateway.left - origin.left + gateway.width / 2, y = gateway.bottom - origin.top;
    for (const { card, wire } of this._workers.values()) {
      const box = card.getBoundingClientRect();
      const end = { x: box.left - origin.left + box.width / 2, y: box.top - origin.top };
      const bend = (end.y - y) / 2;
      wire.setAttribute("d", `M ${end.x} ${end.y} C ${end.x} ${end.y - bend}, ${x} ${y + bend}, ${x} ${y}`);
    }
  }
}

/** The element of a stream, at the gateway. */
function newStream(stream, origin, gateway) {
  const element = h("i", { class: "stream" });
  const x = gateway.left - origin.left + gateway.width / 2, y = gateway.top - origin.top + gateway.height / 2;
  element.dataset.stream = stream.id;
  element.style.setProperty("--hue", ((stream.id * 137.5) % 360).toFixed(0));
  element.style.transform = `translate(${x}px, ${y}px) scale(.2)`;
  $("streams").append(element);
  return { element, worker: stream.worker, moved: -Infinity };
}

/** Give an element as many cells as there are, and note which stream has which. */
function fill(element, ids, slots, cells) {
  while (element.children.length > ids.length) element.lastChild.remove();
  while (element.children.length < ids.length) element.append(h("b", { class: "cell" }));
  ids.forEach((id, at) => {
    element.children[at].classList.toggle("ahead", at >= slots);
    if (id !== null) cells.set(id, element.children[at]);
  });
}
