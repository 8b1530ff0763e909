// Puts the page together: the model, the settings, the chats, the keyboard, and the picture.

import { ask, keys, pause } from "./api.js";
import { Chat } from "./chat.js";
import { $, announce, h } from "./dom.js";
import { TOOLS } from "./examples.js";
import * as history from "./history.js";
import { Images } from "./images.js";
import { Changes, watch } from "./live.js";
import { Load } from "./load.js";
import { Picture } from "./picture.js";
import { isKept } from "./storage.js";

const FIELDS = ["system", "temperature", "top_p", "max_tokens", "seed", "tools"];
const MAX_MINE = 256; // the latest requests of this page that the picture marks
const MAX_LINES = 30; // of what happened
let models = [], settings = history.settings();
const mine = new Set();

function noteMine(id) {
  mine.add(id);
  if (mine.size > MAX_MINE) mine.delete(mine.values().next().value);
}

const chosen = () => models.find(({ id }) => id === $("model").value) ?? { id: "" };
const chat = new Chat({ model: () => $("model").value, settings: () => settings, mine: noteMine });
const images = new Images({ sent: () => chat.images, takes: () => chosen().capabilities?.vision ?? false });
const load = new Load({ model: chosen, mine: noteMine, said: (text) => { $("verdict").textContent = text; } });

// Models.

async function listModels() {
  let wait = 500;
  for (;;) {
    try {
      models = (await (await ask("/v1/models")).json()).data;
      const before = $("model").value || settings.model;
      $("model").replaceChildren(...models.map(({ id }) => new Option(id, id, false, id === before)));
      $("problem").hidden = true;
      if (settings.temperature === undefined && $("model").value === "baton-tiny") change({ temperature: "0" });
      chose();
      return;
    } catch (error) {
      $("problem").replaceChildren(h("strong", {}, error.code ?? "error"), ` ${error.message} `, error.advice ?? "",
        " ", h("button", { type: "button", class: "small", onclick: () => open($("settings")) }, "Settings"));
      $("problem").hidden = false;
      if (error.code === "invalid_api_key") return; // the settings list them again
      await pause(wait);
      wait = Math.min(2 * wait, 5000);
    }
  }
}

function chose() {
  const model = chosen();
  settings.model = model.id;
  keepSettings();
  describe(model);
  images.draw();
  if (!chat.chat.messages.length) chat.draw();
}

/** What the model is: its context, and what its workers can do as far as the picture knows. */
function describe({ id, max_model_len, aliases }) {
  const workers = (snapshot?.workers ?? []).filter(({ model }) => model === id);
  const able = [...new Set(workers.flatMap(({ capabilities }) => capabilities))];
  const words = { chat: "chat", tools: "tool calls", reasoning: "reasoning", grammar: "JSON schemas", images: "images" };
  const parts = [max_model_len ? `${max_model_len} tokens of context` : "", ...able.map((each) => words[each] ?? each),
    aliases?.length ? `also ${aliases.join(", ")}` : "", settings.tools ? "tools on" : ""];
  $("about-model").textContent = parts.filter(Boolean).join(" · ");
}

// Settings and chats.

function keepSettings() {
  if (!history.keepSettings(settings)) announce("The browser has no room to keep the settings.");
}

function change(values) {
  settings = { ...settings, ...values };
  keepSettings();
  describe(chosen());
}

function open(dialog) {
  if (dialog === $("settings")) {
    for (const name of FIELDS) $(`s-${name}`).value = settings[name] ?? "";
    for (const name of ["api-key", "admin-key"]) $(`s-${name}`).value = keys.get(name);
    $("s-problem").textContent = "";
  } else listChats();
  if (!dialog.open) dialog.showModal();
}

function saveSettings(event) {
  event.preventDefault();
  const values = Object.fromEntries(FIELDS.map((name) => [name, $(`s-${name}`).value.trim()]));
  try {
    if (values.tools && !Array.isArray(JSON.parse(values.tools))) throw new Error("it is not an array");
  } catch (error) {
    $("s-problem").textContent = `Tools: ${error.message}`;
    $("s-tools").focus();
    return;
  }
  for (const name of ["api-key", "admin-key"]) keys.set(name, $(`s-${name}`).value);
  document.dispatchEvent(new Event("keys"));
  change(values);
  $("settings").close();
  listModels();
}

function listChats() {
  const found = history.chats();
  $("chat-list").replaceChildren(...found.map((each) => h("li", {},
    h("button", { type: "button", "aria-current": each.id === chat.chat.id ? "true" : null, onclick: () => {
      chat.open(each);
      $("chats").close();
      $("text").focus();
    } }, h("span", {}, each.title || "Untitled"), h("time", {}, new Date(each.updated).toLocaleString())),
    h("button", { type: "button", class: "small", "aria-label": `Delete the chat ${each.title}`, onclick: () => {
      history.forget(each.id);
      if (each.id === chat.chat.id) chat.open(history.newChat());
      listChats();
    } }, "Delete"))));
  $("no-chats").hidden = found.length > 0;
}

function newChat() {
  chat.open(history.newChat());
  show("chat");
  $("text").focus();
}

// The two views of a narrow screen. A wide one has both.

function show(view) {
  document.body.dataset.view = view;
  for (const name of ["chat", "live"]) $(`view-${name}`).setAttribute("aria-pressed", String(name === view));
}

// The picture.

let snapshot = null;
const changes = new Changes();
const picture = new Picture({ onKill: kill, isMine: (request) => mine.has(request) });

function happened(sentences) {
  const time = new Date().toLocaleTimeString();
  for (const text of sentences) $("events").prepend(h("li", {}, h("time", {}, time), " ", text));
  while ($("events").children.length > MAX_LINES) $("events").lastChild.remove();
}

watch((taken) => {
  const first = snapshot === null;
  snapshot = taken;
  $("live-problem").hidden = true;
  $("version").textContent = `Baton ${taken.version}`;
  const changed = changes.take(taken, performance.now() / 1000);
  happened(changed.happened);
  picture.draw(taken, changed);
  if (first || changed.happened.length) describe(chosen());
}, (error) => {
  $("live-problem").textContent = `${error.message} ${error.advice}`;
  $("live-problem").hidden = false;
});

async function kill(name) {
  try {
    const { pid } = await (await ask(`/admin/workers/${encodeURIComponent(name)}/kill`, { method: "POST", body: {}, admin: true })).json();
    happened([`You killed worker ${name}, process ${pid}.`]);
    $("live-problem").hidden = true;
  } catch (error) {
    const advice = error.code === "invalid_api_key" ? "Enter it in the settings." : error.advice;
    $("live-problem").replaceChildren(h("strong", {}, error.code), ` ${error.message} ${advice} `,
      h("button", { type: "button", class: "small", onclick: () => open($("settings")) }, "Settings"));
    $("live-problem").hidden = false;
    announce(error.message);
  }
}

// What a person does.

function submit() {
  if (chat.running) return chat.stop();
  const content = $("text").value.trim();
  if (!(content || images.count) || !$("model").value) return;
  $("text").value = "";
  size();
  chat.send(content, images.take());
}

function size() {
  $("text").style.height = "";
  $("text").style.height = `${$("text").scrollHeight}px`;
}

const SHORTCUTS = {
  KeyN: newChat,
  KeyC: () => open($("chats")),
  KeyS: () => open($("settings")),
  KeyP: () => show(document.body.dataset.view === "live" ? "chat" : "live"),
  KeyM: () => { show("chat"); $("text").focus(); },
  KeyR: () => chat.regenerate(),
};

$("form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
$("text").addEventListener("input", size);
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!chat.running) submit();
  }
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chat.running && !document.querySelector("dialog[open]")) chat.stop();
  const act = event.altKey && !event.ctrlKey && !event.metaKey && SHORTCUTS[event.code];
  if (act && !document.querySelector("dialog[open]")) { event.preventDefault(); act(); }
});
$("log").addEventListener("tools", (event) => change({ tools: event.detail }));
$("model").addEventListener("change", chose);
$("new").addEventListener("click", newChat);
$("open-chats").addEventListener("click", () => open($("chats")));
$("open-settings").addEventListener("click", () => open($("settings")));
$("settings-form").addEventListener("submit", saveSettings);
$("s-example").addEventListener("click", () => { $("s-tools").value = JSON.stringify(TOOLS, null, 1); });
$("clear-all").addEventListener("click", () => {
  history.forgetAll();
  chat.open(history.newChat());
  listChats();
});
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
for (const name of ["chat", "live"]) $(`view-${name}`).addEventListener("click", () => show(name));
$("load-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (load.running) return load.stop();
  if (!chosen().id) return;
  $("load-go").textContent = "Stop";
  const within = (id, most) => Math.min(most, Math.max(1, Math.round(Number($(id).value)) || 1));
  await load.run(within("load-count", 64), within("load-seconds", 600));
  $("load-go").textContent = "Start";
});
addEventListener("pagehide", () => { chat.stop(); load.stop(); });
$("not-kept").hidden = isKept;
$("kept").hidden = !isKept;
show("chat");
listModels();
