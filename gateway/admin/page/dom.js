// Builds elements. Text is set as text, never as HTML, which the page's Content-Security-Policy enforces as well.

export const $ = (id) => document.getElementById(id);

/** An element with properties (`class`, `on...`, `data-...`, `aria-...` or a DOM property) and children. */
export function h(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") element.className = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key in element && !key.startsWith("aria")) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Tell a screen reader. */
export function announce(text) {
  $("status").textContent = text;
}

/** A button that copies what `text()` returns. */
export function copyButton(text, label) {
  const button = h("button", { type: "button", class: "small", "aria-label": label, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed"; // the browser grants this over HTTPS and to localhost alone
    }
    announce(button.textContent);
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } }, "Copy");
  return button;
}
