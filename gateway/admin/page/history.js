// Chats and settings in the browser's storage: one entry a chat, so that two tabs do not overwrite each other's.

import { local } from "./storage.js";

export const MAX_CHATS = 50;
export const MAX_CHARS = 2000000; // of all chats together; the oldest are dropped first
const PREFIX = "baton.chat.";
const SETTINGS = "baton.settings";

/** A chat without messages. */
export function newChat() {
  return { id: `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`, title: "", updated: 0, messages: [] };
}

/** All chats, the latest first. Entries that are no chats are left out. */
export function chats() {
  const found = [];
  for (let index = 0; index < local.length; index++) {
    const key = local.key(index);
    if (!key.startsWith(PREFIX)) continue;
    try {
      const chat = JSON.parse(local.getItem(key));
      if (Array.isArray(chat.messages)) found.push(chat);
    } catch { /* written by something else */ }
  }
  return found.sort((one, other) => other.updated - one.updated);
}

/** A chat that tells how many images were left out of each message. */
function withoutImages(chat) {
  const messages = chat.messages.map(({ images, ...rest }) => (images ? { ...rest, left: images.length } : rest));
  return { ...chat, messages };
}

/** Keep a chat, without its images if they are too large. Returns false if the browser has no room for it. */
export function keep(chat) {
  chat.updated = Date.now();
  let text = JSON.stringify(chat);
  if (text.length > MAX_CHARS) text = JSON.stringify(withoutImages(chat));
  if (text.length > MAX_CHARS) return false;
  let size = text.length;
  chats().filter((each) => each.id !== chat.id).forEach((each, index) => {
    size += JSON.stringify(each).length;
    if (index + 2 > MAX_CHATS || size > MAX_CHARS) forget(each.id);
  });
  try {
    local.setItem(PREFIX + chat.id, text);
    return true;
  } catch {
    return false; // the quota
  }
}

/** True for a chat that is kept, and was not deleted since. */
export function isKept(id) {
  return local.getItem(PREFIX + id) !== null;
}

export function forget(id) {
  local.removeItem(PREFIX + id);
}

export function forgetAll() {
  for (const chat of chats()) forget(chat.id);
}

export function settings() {
  try {
    return JSON.parse(local.getItem(SETTINGS)) ?? {};
  } catch {
    return {};
  }
}

/** Keep the settings. Returns false if the browser has no room for them. */
export function keepSettings(value) {
  try {
    local.setItem(SETTINGS, JSON.stringify(value));
    return true;
  } catch {
    return false; // the quota
  }
}
