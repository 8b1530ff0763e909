// Requests to the server: keys, errors, event streams, and answers that survive a lost connection.

import { session } from "./storage.js";

const RESUME_S = Number(document.querySelector('meta[name="baton-resume-s"]').content);
const ADVICE = {
  invalid_api_key: "Enter the server's API key in the settings.",
  admin_key_needed: "Start the server with --admin-key, and enter that key in the settings.",
  model_not_found: "Choose another model.",
  context_length_exceeded: "Start a new chat, or set fewer tokens in the settings.",
  overloaded: "All workers are busy. Try again in a moment.",
  rate_limit_exceeded: "The limit of this API key is reached. Try again later.",
  unavailable: "No worker of this model is ready. The picture shows what they do.",
  queue_timeout: "It waited too long for a worker. Try again.",
  draining: "The server shuts down or is being replaced. Try again in a moment.",
  deadline_exceeded: "It took too long. Set fewer tokens in the settings.",
  worker_lost: "Try again.",
  quarantined: "Workers failed with this request, so the server does not try it again.",
  template_failed: "The model's chat template does not accept these messages. Try without a system prompt or tools.",
  unsupported: "This model cannot do that. Check the tools in the settings.",
  connection_lost: "Check that the server runs, then try again.",
};

/** The server refused a request, or could not be reached. */
export class Refused extends Error {
  constructor(message, code, retryAfter) {
    super(message);
    this.code = code || "error";
    this.advice = (retryAfter ? `Try again in ${retryAfter} s. ` : "") + (ADVICE[this.code] || "");
  }
}

// Keys are kept for this tab alone.
export const keys = {
  get: (name) => session.getItem(`baton.${name}`) || "",
  set: (name, value) => session.setItem(`baton.${name}`, value.trim()),
};

/** A random id of a request. A snapshot of the picture has those that begin like this. */
export function requestId() {
  return "page-" + Array.from(crypto.getRandomValues(new Uint8Array(12)), (each) => each.toString(16).padStart(2, "0")).join("");
}

export async function ask(path, { method = "GET", body, signal, admin = false, headers = {} } = {}) {
  const key = (admin && keys.get("admin-key")) || keys.get("api-key");
  const sent = { ...headers };
  if (key) sent.authorization = `Bearer ${key}`;
  if (method === "POST") sent["content-type"] = "application/json";
  let response;
  try {
    // Without credentials, a browser does not ask for a password by itself.
    response = await fetch(path, {
      method, signal, headers: sent, credentials: "omit", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server cannot be reached.", "connection_lost");
  }
  if (response.ok) return response;
  let error = {};
  try { ({ error = {} } = await response.json()); } catch { /* no error of this server, such as a proxy's */ }
  throw new Refused(error.message || `The server answered with status ${response.status}.`, error.code,
    response.headers.get("retry-after"));
}

/** The events of a stream. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const event = {};
        for (const line of part.split("\n")) {
          const at = line.indexOf(": ");
          if (at > 0) event[line.slice(0, at)] = line.slice(at + 2);
        }
        if (event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export const pause = (ms) => new Promise((go) => setTimeout(go, ms));

/** The chunks of a chat completion. When the connection breaks, they go on over another one. */
export async function* chunks(body, id, signal) {
  const options = { include_usage: true, ...(RESUME_S ? { resume_s: RESUME_S } : {}) };
  let response = await ask("/v1/chat/completions", {
    method: "POST", signal, headers: { "x-request-id": id }, body: { ...body, stream: true, stream_options: options },
  });
  const stream = response.headers.get("x-stream-id");
  const path = `/v1/streams/${stream}`;
  // The server would keep the stream until its time is over, and wait for that before it ends.
  const remove = () => {
    const key = keys.get("api-key");
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    fetch(path, { method: "DELETE", keepalive: true, credentials: "omit", headers }).catch(() => {});
  };
  if (stream) signal.addEventListener("abort", remove);
  let last = "", broken = 0, wait = 100;
  try {
    for (;;) {
      try {
        response ??= await ask(path, { signal, headers: last ? { "last-event-id": last } : {} });
        if (response.status === 204) return;
        for await (const event of events(response)) {
          last = event.id ?? last;
          broken = 0;
          wait = 100;
          if (event.data === "[DONE]") return;
          const chunk = JSON.parse(event.data);
          if (chunk.error) throw new Refused(chunk.error.message, chunk.error.code);
          yield chunk;
        }
      } catch (error) {
        const lost = !(error instanceof Refused) || ["connection_lost", "stream_elsewhere"].includes(error.code);
        if (!stream || !RESUME_S || !lost || signal.aborted) throw error;
      }
      response = null;
      broken ||= performance.now();
      if (!stream || !RESUME_S || performance.now() - broken > RESUME_S * 1000) {
        throw new Refused("The answer broke off.", "connection_lost");
      }
      await pause(wait);
      wait = Math.min(2 * wait, 5000);
    }
  } finally {
    signal.removeEventListener("abort", remove);
    if (stream && !signal.aborted) remove();
  }
}
