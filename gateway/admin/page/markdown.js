// Markdown as DOM nodes. All text becomes text nodes, and links lead to http, https and mailto alone, so that nothing a
// model writes is executed or loaded. The time is linear in the length of the text, as depths and lengths are bounded.

import { copyButton, h } from "./dom.js";

export const MAX_CHARS = 200000; // a longer text is shown as it is
const MAX_DEPTH = 8; // of lists and quotes
const MAX_NESTED = 8; // of emphasis
const MAX_CELLS = 64; // of a row
const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^\s`]{0,40})/;
const HEADING = /^ {0,3}(#{1,6})(?: +|$)/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +|$)/;
const QUOTE = /^ {0,3}> ?/;
const DELIMITER = /^ *\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;
const LINK = /!?\[([^[\]\n]{0,500})\]\( *<?([^\s<>()]{1,2000})>?(?: +"[^"\n]{0,200}")? *\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`]{1,2000}/y;
const SPECIAL = /[\\`*_~[!h\n]/g;
const MARKS = { "**": "strong", __: "strong", "~~": "del", "*": "em", _: "em" };
const WORD = /[\p{L}\p{N}]/u;

/** The text as a fragment. */
export function render(text) {
  const root = document.createDocumentFragment();
  if (text.length > MAX_CHARS) root.append(h("pre", { class: "plain" }, text));
  else blocks(text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n"), root, 0);
  return root;
}

function blocks(lines, parent, depth) {
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    let found;
    if (!line.trim()) {
      at++;
    } else if ((found = FENCE.exec(line))) {
      at = code(lines, at, found, parent);
    } else if ((found = HEADING.exec(line))) {
      inline(line.slice(found[0].length).replace(/ +#{1,20} *$/, ""), parent.appendChild(h(`h${found[1].length + 2 > 6 ? 6 : found[1].length + 2}`)));
      at++;
    } else if (RULE.test(line)) {
      parent.append(h("hr"));
      at++;
    } else if (depth < MAX_DEPTH && QUOTE.test(line)) {
      const inner = [];
      while (at < lines.length && QUOTE.test(lines[at])) inner.push(lines[at++].replace(QUOTE, ""));
      blocks(inner, parent.appendChild(h("blockquote")), depth + 1);
    } else if (depth < MAX_DEPTH && ITEM.test(line)) {
      at = list(lines, at, parent, depth);
    } else if (line.includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && lines[at + 1].length < 2000 &&
      DELIMITER.test(lines[at + 1])) {
      at = table(lines, at, parent);
    } else {
      const begin = at++;
      while (at < lines.length && lines[at].trim() && !starts(lines[at], depth)) at++;
      inline(lines.slice(begin, at).map((each) => each.trim()).join("\n"), parent.appendChild(h("p")));
    }
  }
}

function starts(line, depth) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) ||
    (depth < MAX_DEPTH && (QUOTE.test(line) || ITEM.test(line)));
}

function code(lines, at, found, parent) {
  const [, fence, language] = found;
  const begin = ++at;
  const ends = (line) => {
    const text = line.trim();
    return text.length >= fence.length && text === fence[0].repeat(text.length);
  };
  while (at < lines.length && !ends(lines[at])) at++;
  const text = lines.slice(begin, at).join("\n");
  const copy = copyButton(() => text, "Copy this code");
  parent.append(h("figure", { class: "code" },
    h("figcaption", {}, h("span", {}, language || "code"), copy),
    h("pre", { tabIndex: 0 }, h("code", {}, text))));
  return at + 1;
}

function list(lines, at, parent, depth) {
  const [, indent, marker] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(marker);
  const kind = marker.slice(-1); // another bullet begins another list
  const element = parent.appendChild(h(ordered ? "ol" : "ul"));
  const first = Number.parseInt(marker, 10);
  if (ordered && first !== 1) element.start = first;
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]);
    if (!found || found[1].length > indent.length + 3 || found[1].length < indent.length || found[2].slice(-1) !== kind || RULE.test(lines[at])) break;
    const width = Math.min(found[0].length, found[1].length + found[2].length + 4);
    const inner = [lines[at++].slice(found[0].length)];
    let blank = false;
    while (at < lines.length) {
      const line = lines[at];
      const space = line.length - line.trimStart().length;
      if (!line.trim()) blank = true;
      else if (space >= Math.min(width, indent.length + 2)) blank = false;
      else if (blank || starts(line, depth)) break; // else it continues the paragraph
      inner.push(line.slice(Math.min(space, width)));
      at++;
    }
    const item = element.appendChild(h("li"));
    blocks(inner, item, depth + 1);
    const [only] = item.children;
    if (only && only.tagName === "P") only.replaceWith(...only.childNodes); // a tight list
  }
  return at;
}

function table(lines, at, parent) {
  const row = (line, cell) => {
    const cells = line.trim().replace(/^\|/, "").replace(/\|$/, "").split("|", MAX_CELLS);
    const element = h("tr");
    for (const text of cells) inline(text.trim(), element.appendChild(h(cell)));
    return element;
  };
  const body = h("tbody");
  const head = h("thead", {}, row(lines[at], "th"));
  for (at += 2; at < lines.length && lines[at].trim() && lines[at].includes("|"); at++) body.append(row(lines[at], "td"));
  parent.append(h("div", { class: "table", tabIndex: 0 }, h("table", {}, head, body)));
  return at;
}

function safe(address) {
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(address, text) {
  return h("a", { href: address, title: address, target: "_blank", rel: "noopener noreferrer nofollow" }, text);
}

function inline(text, parent) {
  const open = [{ mark: "", node: parent }];
  const unclosed = new Set(); // lengths of runs of backticks that nothing ends
  let plain = "", at = 0;
  const top = () => open[open.length - 1].node;
  const flush = () => { if (plain) top().append(plain); plain = ""; };
  const giveUp = () => { // an opener that nothing closes is text
    const { mark, node } = open.pop();
    top().append(mark, ...node.childNodes);
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text);
    if (!next) break;
    plain += text.slice(at, next.index);
    at = next.index;
    const sign = text[at];
    if (sign === "\n") {
      flush();
      top().append(h("br"));
      at++;
    } else if (sign === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else if (sign === "`") {
      let run = 1;
      while (text[at + run] === "`") run++;
      const end = unclosed.has(run) ? -1 : closing(text, at + run, run);
      if (end < 0) {
        unclosed.add(run);
        plain += text.slice(at, at + run);
        at += run;
      } else {
        flush();
        const inside = text.slice(at + run, end);
        top().append(h("code", {}, /^ .*[^ ].* $/.test(inside) && inside.length < 1000 ? inside.slice(1, -1) : inside));
        at = end + run;
      }
    } else if (sign === "[" || (sign === "!" && text[at + 1] === "[")) {
      LINK.lastIndex = at;
      const found = LINK.exec(text);
      const address = found && safe(found[2]);
      if (address) {
        flush();
        top().append(link(address, found[1] || found[2]));
        at += found[0].length;
      } else {
        plain += sign;
        at++;
      }
    } else if (sign === "h") {
      ADDRESS.lastIndex = at;
      const found = WORD.test(text[at - 1] ?? " ") ? null : ADDRESS.exec(text);
      const shown = found && found[0].replace(/[.,;:!?)\]}*_~]{1,20}$/, "");
      const address = shown && safe(shown);
      if (address) {
        flush();
        top().append(link(address, shown));
        at += shown.length;
      } else {
        plain += sign;
        at++;
      }
    } else {
      const double = sign + sign;
      const closes = open.at(-1).mark === sign && text[at + 2] === sign; // of `***`, first the inner one
      const mark = text.startsWith(double, at) && double in MARKS && !closes ? double : sign;
      const before = text[at - 1] ?? " ", after = text[at + mark.length] ?? " ";
      const within = sign === "_" && WORD.test(before) && WORD.test(after); // snake_case
      const index = open.findLastIndex((each) => each.mark === mark);
      if (mark in MARKS && !within && index > 0 && before.trim()) {
        flush();
        while (open.length > index + 1) giveUp();
        const { node } = open.pop();
        top().append(node);
      } else if (mark in MARKS && !within && after.trim() && open.length <= MAX_NESTED) {
        flush();
        open.push({ mark, node: h(MARKS[mark]) });
      } else {
        plain += mark;
      }
      at += mark.length;
    }
  }
  plain += text.slice(at);
  flush();
  while (open.length > 1) giveUp();
}

function closing(text, from, length) {
  let at = from;
  while ((at = text.indexOf("`", at)) >= 0) {
    let run = 1;
    while (text[at + run] === "`") run++;
    if (run === length) return at;
    at += run;
  }
  return -1;
}
