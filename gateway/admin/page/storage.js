// The browser's storage. Where the browser keeps nothing for this site, the page has memory in its place, so that chats
// and keys last until it is closed.

class Memory {
  constructor() {
    this._items = new Map();
  }

  get length() {
    return this._items.size;
  }

  key(index) {
    return [...this._items.keys()][index] ?? null;
  }

  getItem(name) {
    return this._items.get(name) ?? null;
  }

  setItem(name, value) {
    this._items.set(name, value);
  }

  removeItem(name) {
    this._items.delete(name);
  }
}

/** The storage of this name, or memory if the browser refuses it, as it does where the user has forbidden it. */
function opened(name) {
  try {
    const storage = globalThis[name];
    storage.getItem("baton.settings");
    return storage;
  } catch {
    return new Memory();
  }
}

export const local = opened("localStorage");
export const session = opened("sessionStorage");

/** False if nothing is kept when the page is closed. */
export const isKept = !(local instanceof Memory);
