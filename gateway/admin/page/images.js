// The images that go with the next message: chosen, dropped or pasted, shown, and removed again.

import { $, announce, h } from "./dom.js";

const MAX_BYTES = 12 * 1024 * 1024; // of all images of a request, as the server allows
const MAX_COUNT = 64;
const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/** Bytes of a file by its data URL. */
const bytesOf = (url) => (url.length - url.indexOf(",") - 1) * 0.75;
const megabytes = (bytes) => (bytes / 1024 / 1024).toFixed(1);

/** Small images in a row. With `onRemove(index)` each has a button. */
export function thumbnails(urls, onRemove) {
  return h("div", { class: "thumbnails" }, ...urls.map((url, index) => h("figure", {},
    h("img", { src: url, alt: `Image ${index + 1}` }),
    onRemove && h("button", { type: "button", class: "small", "aria-label": `Remove image ${index + 1}`, onclick: () => onRemove(index) }, "×"))));
}

function read(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
}

export class Images {
  /** `sent()` are those of the chat's earlier messages, which are sent again; `takes()` is false for a model without
      vision. */
  constructor({ sent, takes }) {
    this._sent = sent;
    this._takes = takes;
    this._urls = [];
    $("attach").addEventListener("click", () => $("image-file").click());
    $("image-file").addEventListener("change", () => {
      this.add($("image-file").files);
      $("image-file").value = "";
    });
    $("text").addEventListener("paste", (event) => this._given(event, event.clipboardData));
    for (const kind of ["dragover", "drop"]) {
      $("chat").addEventListener(kind, (event) => {
        if (kind === "drop") this._given(event, event.dataTransfer);
        else if (event.dataTransfer.types.includes("Files")) event.preventDefault();
      });
    }
  }

  get count() {
    return this._urls.length;
  }

  /** Add files, as far as they are images and there is room. */
  async add(files) {
    for (const file of [...files]) { // a list of the browser empties itself
      const problem = this._problem(file);
      if (problem) {
        this._say(problem);
        return;
      }
      try {
        this._urls.push(await read(file));
      } catch (error) {
        this._say(`${file.name} cannot be read: ${error.message}`);
        return;
      }
      this._say("");
    }
  }

  /** Take the images, for a message. */
  take() {
    const urls = this._urls;
    this._urls = [];
    this._say("");
    return urls;
  }

  /** Show the button, or hide it for a model without vision. */
  draw() {
    $("attach").hidden = !this._takes();
    $("images").replaceChildren(thumbnails(this._urls, (index) => {
      this._urls.splice(index, 1);
      this._say("");
      $("text").focus();
    }));
  }

  _given(event, data) {
    if (!data?.files.length) return;
    event.preventDefault();
    this.add(data.files);
  }

  _problem(file) {
    if (!this._takes()) return "This model takes no images.";
    if (!TYPES.includes(file.type)) return `${file.name} is no PNG, JPEG, WebP or GIF file.`;
    const urls = [...this._sent(), ...this._urls];
    if (urls.length >= MAX_COUNT) return `A chat may have ${MAX_COUNT} images. Start a new one.`;
    const size = urls.reduce((sum, url) => sum + bytesOf(url), file.size);
    return size > MAX_BYTES ? `${file.name} is too large: the images of a chat would have ${megabytes(size)} MB, and ${megabytes(MAX_BYTES)} are allowed.` : "";
  }

  _say(text) {
    $("image-problem").textContent = text;
    $("image-problem").hidden = !text;
    if (text) announce(text);
    this.draw();
  }
}
