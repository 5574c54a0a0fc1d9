"use strict";
// Turns texts of a log into elements. Every text is set as text: there is no innerHTML here, and the page's
// policy (trusted types) would refuse it. Markdown becomes elements that this file names, never markup of the text.

const $ = (id) => document.getElementById(id);

function h(tag, facts, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(facts || {})) {
    if (name === "on") element.addEventListener("click", value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) element.append(child instanceof Node ? child : visible(String(child)));
  }
  return element;
}

// Control characters, and those that turn the direction of writing, are shown as their codes.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
function visible(text) {
  return text.replace(HIDDEN, (letter) => "\\u" + letter.charCodeAt(0).toString(16).padStart(4, "0"));
}

const json = (value) => JSON.stringify(value, null, 2);

// --- copying -----------------------------------------------------------------------------------

// What is copied is what is shown: a control character in a command is copied as its code.
function copyable(element, text) {
  const button = h("button", { class: "copy", type: "button", "aria-label": "Copy this text", on: async () => {
    try { await navigator.clipboard.writeText(visible(text)); button.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(element); button.textContent = "Selected"; }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  } }, "Copy");
  return h("div", { class: "copyable" }, element, button);
}

// --- JSON, diffs, plain text -------------------------------------------------------------------

// A text without an end is a token, too; otherwise each quotation mark in it would be tried in vain.
const TOKENS = /("(?:[^"\\]|\\[^])*(?:"|\\?$))(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/g;
function colourJson(text) {
  const parts = [];
  let last = 0;
  for (const found of text.matchAll(TOKENS)) {
    parts.push(text.slice(last, found.index));
    const kind = found[1] ? (found[2] ? "key" : "string") : found[3] ? "word" : "number";
    parts.push(h("span", { class: `j-${kind}` }, found[1] || found[0]), found[2] || "");
    last = found.index + found[0].length;
  }
  return h("pre", { class: "json", tabindex: "0" }, parts, text.slice(last));
}

const LONGEST_COLOURED = 100_000; // characters: an element for every token of more would make the page slow
const showJson = (value) => {
  const text = typeof value === "string" ? value : json(value);
  return copyable(text.length > LONGEST_COLOURED ? h("pre", { tabindex: "0" }, text) : colourJson(text), text);
};

function looksLikeDiff(text) {
  return /^(diff --git |--- .*\n\+\+\+ |@@ -\d+(,\d+)? \+\d+)/m.test(text) && /^[-+]/m.test(text);
}

function lineKind(line) {
  if (line.startsWith("@@")) return "place";
  if (line.startsWith("+++") || line.startsWith("---") || line.startsWith("diff ")) return "file";
  return { "+": "added", "-": "removed" }[line[0]] || "same";
}

function showDiff(text) {
  const lines = text.split("\n").map((line) => h("span", { class: `d-${lineKind(line)}` }, line + "\n"));
  return copyable(h("pre", { class: "diff", tabindex: "0" }, lines), text);
}

function showChange(before, after) {
  const lines = [...before.split("\n").map((line) => "-" + line), ...after.split("\n").map((line) => "+" + line)];
  return showDiff(lines.join("\n"));
}

// A text as what it is: JSON, a diff, or lines.
function showText(text) {
  if (text.length <= LONGEST_COLOURED) {
    if (/^\s*[[{]/.test(text)) {
      try { return showJson(json(JSON.parse(text))); } catch { /* it only begins like JSON */ }
    }
    if (looksLikeDiff(text)) return showDiff(text);
  }
  return copyable(h("pre", { tabindex: "0" }, text), text);
}

// --- Markdown ----------------------------------------------------------------------------------

// Links are not followed from here: the address is shown, and can be copied. Images are never fetched.
// Each text is scanned once, whatever it contains: a search that goes back would freeze the page at a hostile text.
const DELIMITERS = /`+|\*\*|\*|!?\[/g;
function inline(text) {
  const parts = [];
  const find = finders(text);
  const scan = new RegExp(DELIMITERS);
  let last = 0;
  for (let found = scan.exec(text); found; found = scan.exec(text)) {
    const mark = found[0];
    const span = mark[0] === "`" ? readCode(text, found.index, mark, find)
      : mark === "**" ? readStrong(text, found.index, find)
        : mark === "*" ? readEmphasis(text, found.index, find)
          : readLink(text, found.index, mark, find);
    if (!span) continue;
    parts.push(text.slice(last, found.index), span.element);
    last = scan.lastIndex = span.end;
  }
  return [...parts, text.slice(last)];
}

// Functions that return the first place at or after another one, or -1; the places that are asked for only grow.
function finders(text) {
  const next = (pattern) => {
    const search = new RegExp(pattern, "g");
    let at = -1;
    return (from) => {
      if (at !== Infinity && at < from) {
        search.lastIndex = from;
        const found = search.exec(text);
        at = found ? found.index : Infinity;
      }
      return at === Infinity ? -1 : at;
    };
  };
  const runs = new Map(); // the places of the runs of backticks, by their length
  for (const found of text.matchAll(/`+/g)) {
    if (!runs.has(found[0].length)) runs.set(found[0].length, { places: [], at: 0 });
    runs.get(found[0].length).places.push(found.index);
  }
  const run = (length, from) => {
    const same = runs.get(length);
    while (same.at < same.places.length && same.places[same.at] < from) same.at += 1;
    return same.at < same.places.length ? same.places[same.at] : -1;
  };
  return {
    run, strong: next("(?<=\\S)\\*\\*"), star: next("\\*"), bracket: next("\\]"), line: next("\\n"),
    paren: next("\\)"), lineInside: next("\\n"),
  };
}

function readCode(text, start, mark, find) {
  const from = start + mark.length;
  const end = find.run(mark.length, from);
  return end < 0 ? null : { element: h("code", {}, text.slice(from, end)), end: end + mark.length };
}

function readStrong(text, start, find) {
  const end = find.strong(start + 3);
  if (end < 0 || /\s/.test(text[start + 2])) return null;
  return { element: h("strong", {}, text.slice(start + 2, end)), end: end + 2 };
}

function readEmphasis(text, start, find) {
  const end = find.star(start + 2);
  if (end < 0 || /[\s*]/.test(text[start + 1]) || /\s/.test(text[end - 1])) return null;
  return { element: h("em", {}, text.slice(start + 1, end)), end: end + 1 };
}

function readLink(text, start, mark, find) {
  const from = start + mark.length;
  const close = find.bracket(from);
  const line = find.line(from);
  if (close < 0 || (line >= 0 && line < close) || text[close + 1] !== "(") return null;
  const end = find.paren(close + 2);
  const lineInside = find.lineInside(close + 2);
  if (end <= close + 2 || (lineInside >= 0 && lineInside < end) || /\s/.test(text[close + 2])) return null;
  const [address] = text.slice(close + 2, end).split(/\s/, 1);
  const label = text.slice(from, close);
  const shown = mark[0] === "!" ? `[image: ${label}]` : label;
  return { element: h("span", { class: "link" }, shown, " ", h("code", {}, address)), end: end + 1 };
}

const BLOCKS = [ // what a line begins, and the lines that belong to it
  [/^\s*(```+|~~~+)\s*(\S*)/, readFence],
  [/^(#{1,6})\s+(.*)$/, (lines, found) => h("p", { class: `heading h${found[1].length}` }, inline(found[2]))],
  [/^\s*(?:-{3,}|\*{3,}|_{3,})\s*$/, () => h("hr")],
  [/^\s*>/, (lines, found, line) => h("blockquote", {}, markdown([line, ...takeWhile(lines, /^\s*>/)].map((each) => each.replace(/^\s*> ?/, "")).join("\n"), true))],
  [/^\s*(?:[-*+]|\d{1,9}[.)])\s+/, readList],
  [/^\s*\|.*\|\s*$/, readTable],
];

// The next line stands at the end of `lines`: taking it from the front of a long text would move all the others.
function takeWhile(lines, pattern) {
  const taken = [];
  while (lines.length && pattern.test(lines.at(-1))) taken.push(lines.pop());
  return taken;
}

function readFence(lines, found) {
  const body = [];
  while (lines.length && !lines.at(-1).trim().startsWith(found[1])) body.push(lines.pop());
  lines.pop();
  const text = body.join("\n");
  if (/^(diff|patch)$/i.test(found[2])) return showDiff(text);
  return /^json$/i.test(found[2]) ? showText(text) : copyable(h("pre", { class: "code", tabindex: "0" }, text), text);
}

function readList(lines, found, line) {
  const numbered = /^\s*\d/.test(line);
  const items = [line, ...takeWhile(lines, /^\s*(?:[-*+]|\d{1,9}[.)])\s+|^\s{2,}\S/)];
  const list = h(numbered ? "ol" : "ul");
  for (const each of items) {
    const start = each.match(/^(\s*)(?:[-*+]|\d{1,9}[.)])\s+(.*)$/);
    if (start || !list.lastChild) list.append(h("li", start && start[1].length > 1 ? { class: "deeper" } : {}, inline(start ? start[2] : each)));
    else list.lastChild.append(...h("span", {}, "\n", inline(each.trim())).childNodes);
  }
  return list;
}

function readTable(lines, found, line) {
  const cells = (row) => row.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const rows = [line, ...takeWhile(lines, /^\s*\|.*\|\s*$/)];
  if (rows.length < 2 || !/^[\s|:-]+$/.test(rows[1])) return h("p", {}, inline(rows.join("\n")));
  const head = h("thead", {}, h("tr", {}, cells(rows[0]).map((cell) => h("th", { scope: "col" }, inline(cell) ))));
  const body = h("tbody", {}, rows.slice(2).map((row) => h("tr", {}, cells(row).map((cell) => h("td", {}, inline(cell))))));
  return h("div", { class: "table", tabindex: "0" }, h("table", {}, head, body));
}

function markdown(text, nested) {
  const root = h("div", { class: "markdown" });
  const lines = text.split("\n").reverse();
  let paragraph = [];
  const end = () => { if (paragraph.length) root.append(h("p", {}, inline(paragraph.join("\n")))); paragraph = []; };
  while (lines.length) {
    const line = lines.pop();
    const [pattern, read] = BLOCKS.find(([each, make]) => each.test(line) && !(nested && /^\s*>/.test(line))) || [];
    if (!pattern && line.trim()) { paragraph.push(line); continue; }
    end();
    if (pattern) root.append(read(lines, line.match(pattern), line));
  }
  end();
  return root;
}

// --- values as text ----------------------------------------------------------------------------

const number = (value) => Number(value || 0).toLocaleString("en");
const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false });
const day = (at) => new Date(at).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });

function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// Costs are exact decimals and come as text or numbers; they are shown with the digits that matter.
function money(amount) {
  const value = Number(amount);
  return "$" + (value === 0 ? "0" : value < 0.01 ? String(Number(value.toPrecision(3))) : value.toFixed(value < 1 ? 4 : 2));
}

// --- parts of pages ---------------------------------------------------------------------------

// A table; a cell is text, a number in { n }, or an element. Numbers are set to the right.
function table(label, heads, rows, empty) {
  const cell = (tag, value, facts) => (value?.n !== undefined ? h(tag, { ...facts, class: "n" }, value.n) : h(tag, facts, value));
  if (!rows.length) return h("p", { class: "soft" }, empty || "Nothing yet.");
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": label }, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((head) => cell("th", head, { scope: "col" })))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value) => cell("td", value)))))));
}

// Figures in a row: each a name, a value, and what is said below it.
const figures = (rows) => rows.map(([name, value, more]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, more ? h("small", {}, more) : null)));

// Buttons of which one is pressed; the names are the keys of the words.
const choices = (words, current, choose) => Object.entries(words).map(([name, text]) =>
  h("button", { type: "button", "data-name": name, "aria-pressed": String(name === current), on: () => choose(name) }, text));

function complain(error) {
  $("trouble").hidden = !error;
  $("trouble").textContent = error ? visible(String(error.message || error)) : "";
}

// Ask the server. A page behind a key defines the headers that carry it.
async function request(url, { headers, ...options } = {}) {
  const answer = await fetch(url, { cache: "no-store", ...options, headers: { ...globalThis.siteHeaders?.(), ...headers } });
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({}));
  throw Object.assign(new Error(error?.message || error || `the server answered ${answer.status}`), { status: answer.status });
}

// --- light and dark ---------------------------------------------------------------------------

function switchTheme() {
  const dark = document.documentElement.dataset.theme === "dark" ||
    (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* not kept, then */ }
}

try { const theme = localStorage.getItem("theme"); if (theme) document.documentElement.dataset.theme = theme; } catch { /* the system's, then */ }
$("theme").addEventListener("click", switchTheme);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); document.querySelector(event.target.getAttribute("href")).focus(); });
