"use strict";
// Everything that comes from the log is set as text. There is no innerHTML here, and the page's
// policy (trusted types) would refuse it if there were.

const $ = (id) => document.getElementById(id);
const PAGE = 300;
const state = { session: null, last: 0, filter: "all", proposals: new Map(), calls: new Map(), asked: new Map(), timer: 0, token: 0 };

// --- building blocks ---------------------------------------------------------------------------

function h(tag, facts, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(facts || {})) {
    if (name === "on") element.addEventListener("click", value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) element.append(child instanceof Node ? child : visible(String(child)));
  }
  return element;
}

// Control characters, and those that turn the direction of writing, are shown as what they are.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
function visible(text) {
  return text.replace(HIDDEN, (letter) => "\\u" + letter.charCodeAt(0).toString(16).padStart(4, "0"));
}

const number = (value) => Number(value || 0).toLocaleString("en");
const json = (value) => JSON.stringify(value, null, 2);
const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false });
const day = (at) => new Date(at).toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hour12: false });

function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// Costs are exact decimals and come as text or numbers; they are shown with what matters of them.
function money(amount) {
  const value = Number(amount);
  return "$" + (value === 0 ? "0" : value < 0.01 ? String(Number(value.toPrecision(3))) : value.toFixed(value < 1 ? 4 : 2));
}

async function ask(name, facts) {
  const answer = await fetch(`api/${name}?${new URLSearchParams(facts)}`, { cache: "no-store" });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error || `the server said ${answer.status}`);
  return body;
}

function complain(error) {
  $("trouble").hidden = !error;
  $("trouble").textContent = error ? visible(String(error.message || error)) : "";
}

// --- sessions ----------------------------------------------------------------------------------

let listed = 0;
async function listSessions(more) {
  listed = more ? listed : 0;
  try {
    const found = await ask("sessions", { query: $("search").value.trim(), offset: listed, limit: 100 });
    if (!more) $("sessions").replaceChildren();
    $("sessions").querySelector("button")?.remove();
    for (const entry of found.sessions) $("sessions").append(sessionLink(entry));
    listed += found.sessions.length;
    if (listed < found.total) {
      $("sessions").append(h("button", { type: "button", on: () => listSessions(true) }, `${number(found.total - listed)} more`));
    }
    if (!found.total) $("sessions").append(h("p", { class: "who" }, "No session."));
    if (!state.session && found.sessions.length && !location.hash) location.hash = encodeURIComponent(found.sessions[0].session);
    markCurrent();
  } catch (error) { complain(error); }
}

function sessionLink(entry) {
  const ended = entry.outcome || "";
  const link = h("a", { href: "#" + encodeURIComponent(entry.session), title: `${entry.records} records` },
    h("span", { class: "title" }, entry.goal || entry.session),
    h("span", { class: "under" }, h("span", {}, [entry.goal ? entry.session : "", ended].filter(Boolean).join(" · ")), h("span", {}, day(entry.updated))));
  link.dataset.session = entry.session;
  return link;
}

function markCurrent() {
  for (const link of $("sessions").querySelectorAll("a")) {
    if (link.dataset.session === state.session) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// --- one session -------------------------------------------------------------------------------

async function openSession() {
  let session = "";
  try { session = decodeURIComponent(location.hash.slice(1)); } catch { session = location.hash.slice(1); }
  clearTimeout(state.timer);
  const token = ++state.token;
  Object.assign(state, { session: session || null, last: 0, proposals: new Map(), calls: new Map(), asked: new Map(), finished: false });
  $("timeline").replaceChildren();
  $("totals").replaceChildren();
  for (const id of ["outcome", "chain"]) { $(id).textContent = ""; $(id).className = "chip"; }
  $("session").hidden = !session;
  $("empty").hidden = Boolean(session);
  $("more").hidden = true;
  complain(null);
  markCurrent();
  if (!session) return;
  $("name").textContent = visible(session);
  $("goal").textContent = visible(session);
  document.title = `${visible(session)} · trace`;
  try {
    await readOn(token);
    await Promise.all([showTotals(token), checkChain(token)]);
  } catch (error) { if (token === state.token) complain(error); }
}

async function readOn(token) {
  const found = await ask("steps", { session: state.session, after: state.last, limit: PAGE });
  if (token !== state.token) return 0;
  if (!found.steps.length && !state.last) throw new Error(`the log has no session ${state.session}`);
  for (const step of found.steps) place(step);
  state.last = found.last;
  $("more").hidden = found.steps.length < PAGE;
  applyFilter();
  if (found.steps.length < PAGE && !state.finished) follow(token);
  return found.steps.length;
}

// A session under way is followed: the log's readers never hold its writer up.
function follow(token) {
  clearTimeout(state.timer);
  state.timer = setTimeout(async () => {
    if (token !== state.token) return;
    if (document.hidden) return follow(token);
    try {
      // A chain that takes long to check is not checked again at every step of a session under way.
      if (await readOn(token)) await Promise.all([showTotals(token), state.slow && !state.finished ? null : checkChain(token)]);
    } catch (error) { complain(error); follow(token); }
  }, 2000);
}

async function showTotals(token) {
  const totals = await ask("totals", { session: state.session });
  if (token !== state.token) return;
  if (totals.goal) { $("goal").textContent = visible(totals.goal); document.title = `${visible(totals.goal).slice(0, 80)} · trace`; }
  const tones = { completed: "good", failed: "bad", cancelled: "wait", exhausted: "wait" };
  $("outcome").textContent = totals.outcome || "not finished";
  $("outcome").className = `chip ${tones[totals.outcome] || ""}`;
  const known = totals.calls > (totals.unpriced || 0);
  const cost = known ? money(totals.cost_usd || 0) : totals.calls ? "unknown" : "—";
  const rows = [
    ["Turns", number(totals.turns)],
    ["Model calls", number(totals.calls), totals.failed_calls ? `${number(totals.failed_calls)} failed` : ""],
    ["Tokens in", number(totals.input_tokens), totals.cached_input_tokens ? `${number(totals.cached_input_tokens)} cached` : ""],
    ["Tokens out", number(totals.output_tokens)],
    ["Cost", cost, known && totals.unpriced ? `+ ${number(totals.unpriced)} unknown` : ""],
    ["Tools", number(totals.proposed), `${number(totals.allowed)} allowed, ${number(totals.denied)} denied, ${number(totals.ran)} ran`],
  ];
  $("totals").replaceChildren(...rows.map(([name, value, more]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value, more ? h("small", {}, more) : null))));
}

async function checkChain(token) {
  $("chain").textContent = "checking the chain…";
  $("chain").className = "chip wait";
  const began = performance.now();
  const chain = await ask("chain", { session: state.session });
  if (token !== state.token) return;
  state.slow = performance.now() - began > 1500;
  const found = chain.break;
  $("chain").textContent = chain.ok ? `chain whole, ${number(chain.records)} records`
    : visible(`chain broken at record ${found.seq}: ${found.problem}: ${found.detail}`);
  $("chain").className = `chip ${chain.ok ? "good" : "bad"}`;
}

// --- the timeline ------------------------------------------------------------------------------

function place(step) {
  if (step.type === "session.finished") state.finished = true;
  else if (step.type === "session.resumed") state.finished = false;
  const data = step.data || {};
  if (step.type === "turn.started") return add(turnItem(step, data));
  if (step.intent) return placeInProposal(step, data);
  if (step.type === "message.recorded") return placeMessage(step, data);
  if (step.type.startsWith("llm.call_")) return placeCall(step, data);
  add(lineItem(step, "other"));
}

function add(item) { $("timeline").append(item); }

function item(step, kind, ...children) {
  const odd = step.notes && step.notes.length;
  const element = h("li", { class: `${kind} ${step.actor}${odd ? " odd" : ""}`, tabindex: "0" }, children,
    (step.notes || []).map((note) => h("p", { class: "note" }, note)));
  element.dataset.kind = kind;
  element.dataset.seq = step.seq;
  return element;
}

function rawButton(step) {
  return h("button", { class: "raw", type: "button", title: "The record as stored", "aria-label": `Record ${step.seq} as stored`,
    on: () => showRecord(step.seq) }, `#${step.seq}`);
}

function lineItem(step, kind, words, extra) {
  const minor = kind === "other" || kind === "told";
  const failed = step.type === "llm.call_failed" || step.type === "budget.exceeded";
  const element = item(step, kind, h("div", { class: "line" },
    h("span", { class: "words" }, words || step.title), extra || null, h("time", { datetime: step.at }, clock(step.at)), rawButton(step)));
  if (minor) element.classList.add("minor");
  if (failed) element.classList.add("failed");
  return element;
}

function turnItem(step, data) {
  const model = [data.provider, data.model].filter(Boolean).join(":");
  const element = item(step, "turn", h("div", { class: "line" },
    h("h2", { class: "words" }, `Turn ${data.number}`, model ? h("span", { class: "mono" }, model) : null),
    h("time", { datetime: step.at }, clock(step.at)), rawButton(step)));
  element.removeAttribute("tabindex");
  return element;
}

// Proposals are on record as they come, and the message they were part of once it is whole. What was
// said is read first; the numbers keep the order of the records.
function placeMessage(step, data) {
  const made = messageItem(step, data);
  const asked = data.message?.role === "assistant" && data.request_id ? state.asked.get(data.request_id) : null;
  if (asked && asked.isConnected) asked.after(made); else add(made);
}

function messageItem(step, data) {
  const message = data.message || {};
  if (message.role === "tool") {
    const told = lineItem(step, "told", h("details", {}, h("summary", {}, "told the model the result"), h("div", { class: "said" }, said(message.content))));
    return told;
  }
  const blocks = Array.isArray(message.content) ? message.content : [{ type: "text", text: String(message.content ?? "") }];
  const body = blocks.map(block).filter(Boolean);
  for (const loss of data.warnings || []) body.push(h("p", { class: "note" }, `lost in translation: ${loss.code} at ${loss.path}: ${loss.detail || ""}`));
  if (!body.some((each) => each.tagName !== "P") && blocks.every((each) => each.type === "tool_call")) {
    return lineItem(step, "message", blocks.map((each) => `→ ${each.name}`).join("  "));
  }
  const who = message.role === "assistant" ? [data.provider, data.model].filter(Boolean).join(":") || "assistant" : message.role;
  const aside = data.in_context === false ? " (kept as evidence, not shown to the model again)" : "";
  return item(step, "message", h("div", { class: "card" },
    h("div", { class: "line" }, h("span", { class: "words who" }, who + aside), h("time", { datetime: step.at }, clock(step.at)), rawButton(step)), body));
}

function block(each) {
  if (each.type === "text") return each.text ? h("div", { class: "said" }, each.text) : null;
  if (each.type === "thinking") return h("details", {}, h("summary", {}, "thinking"), h("div", { class: "said" }, each.text || "(nothing to read)"));
  if (each.type === "tool_call") return h("p", { class: "who" }, "→ ", h("code", {}, each.name));
  return h("details", {}, h("summary", {}, String(each.type)), h("pre", {}, json(each)));
}

function said(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return json(content ?? "");
  return content.map((each) => (each.type === "text" ? each.text : `[${each.type}]`)).join("\n");
}

// One line per call: it begins as asked, and becomes what came of it.
function placeCall(step, data) {
  const key = `${data.request_id} ${data.attempt || 0}`;
  const before = data.request_id ? state.calls.get(key) : null;
  const made = lineItem(step, "call", callWords(step, data), data.request_id ? h("span", { class: "tools" },
    h("button", { class: "raw", type: "button", title: "What was asked and what came back", on: () => showExchange(data.request_id) }, "exchange")) : null);
  if (data.request_id) state.asked.set(data.request_id, made);
  if (step.type === "llm.call_started") { if (data.request_id) state.calls.set(key, made); return add(made); }
  state.calls.delete(key);
  if (before && before.isConnected) before.replaceWith(made); else add(made);
}

function callWords(step, data) {
  if (step.type !== "llm.call_completed") return step.title;
  const cached = data.cached_input_tokens ? ` (${number(data.cached_input_tokens)} cached)` : "";
  const count = (value) => (value === undefined || value === null ? "?" : number(value));
  return [`${data.provider}:${data.model}`, `${count(data.input_tokens)} in${cached}`, `${count(data.output_tokens)} out`,
    duration(data.latency_ms), data.cost_usd === undefined ? "price unknown" : money(data.cost_usd), data.stop_reason].join("  ·  ");
}

// --- a proposal and what became of it ----------------------------------------------------------

const STAGES = ["Intent", "Decision", "Execution", "Observation"];
const MEANS = { // the stage a record belongs to, what it says of it, and the chip
  "tool_intent.proposed": [0, "done", "proposed", "wait"],
  "tool_intent.validated": [0, "done", null, null],
  "tool_intent.rejected": [0, "stopped", "rejected", "bad"],
  "tool_intent.closed": [3, "stopped", "closed", "wait"],
  "permission.requested": [1, "now", "waiting for a decision", "wait"],
  "permission.granted": [1, "done", "allowed", "wait"],
  "permission.denied": [1, "stopped", "denied", "bad"],
  "tool.started": [2, "now", "running", "wait"],
  "tool.observed": [3, "done", "observed", "good"],
  "tool.failed": [2, "stopped", "failed", "bad"],
};

function placeInProposal(step, data) {
  let proposal = state.proposals.get(step.intent);
  if (!proposal) {
    proposal = makeProposal(step, data);
    state.proposals.set(step.intent, proposal);
    add(proposal.item);
  }
  const [stage, how, word, tone] = MEANS[step.type] || [0, "done", null, null];
  proposal.stages[stage].className = how;
  if (step.type === "tool.observed") proposal.stages[2].className = "done";
  if (step.type === "tool_intent.closed" && proposal.stages[2].className === "now") proposal.stages[2].className = "stopped";
  if (word) {
    const error = step.type === "tool.observed" && data.is_error;
    proposal.chip.textContent = error ? "observed an error" : word;
    proposal.chip.className = `chip ${error ? "bad" : tone}`;
  }
  if (step.type === "tool_intent.proposed") proposal.input = json(data.input);
  proposal.parts.append(part(step, data, proposal));
  for (const note of step.notes || []) { proposal.item.classList.add("odd"); proposal.item.append(h("p", { class: "note" }, note)); }
}

function makeProposal(step, data) {
  const chip = h("span", { class: "chip" });
  const stages = STAGES.map((name) => h("li", {}, name));
  const parts = h("div", { class: "parts" });
  const element = item({ ...step, notes: [] }, "proposal-item", h("section", { class: "proposal", "aria-label": `Proposal ${data.tool_name || step.intent}` },
    h("header", {}, h("strong", {}, data.tool_name || step.intent), h("time", { class: "who", datetime: step.at }, clock(step.at)), chip),
    h("ol", { class: "stages" }, stages), parts));
  return { item: element, chip, stages, parts, input: null };
}

function part(step, data, proposal) {
  const [what, ...body] = describePart(step, data, proposal);
  return h("div", {}, h("span", { class: "what" }, what), h("div", {}, body), rawButton(step));
}

function describePart(step, data, proposal) {
  const by = `by ${data.by}${data.rule ? `, rule ${data.rule}` : ""}${data.scope && data.scope !== "once" ? `, for ${data.scope}` : ""}`;
  const reason = data.reason ? h("div", { class: "said" }, data.reason) : null;
  switch (step.type) {
    case "tool_intent.proposed": return ["Proposed", pairs(data.input)];
    case "tool_intent.validated": return ["Checked", `effect: ${data.side_effect}${(data.paths || []).length ? `, on ${data.paths.join(", ")}` : ""}`];
    case "tool_intent.rejected": return ["Rejected", `${data.problem}: ${data.detail || ""}`];
    case "tool_intent.closed": return ["Closed", data.reason];
    case "permission.requested": return ["Asked", data.reason || "somebody has to decide"];
    case "permission.granted": return ["Allowed", by, reason];
    case "permission.denied": return ["Denied", by, reason];
    case "tool.started": {
      const same = json(data.input) === proposal.input;
      const how = data.context && Object.keys(data.context).length ? h("details", {}, h("summary", {}, "how"), h("pre", {}, json(data.context))) : null;
      return ["Ran", same ? "with the input proposed" : pairs(data.input), how];
    }
    case "tool.observed": {
      const facts = [data.exit_code !== undefined ? `exit ${data.exit_code}` : "", data.is_error ? "error" : "", data.truncated ? "truncated" : "",
        data.duration_ms !== undefined ? duration(data.duration_ms) : ""].filter(Boolean).join(", ");
      return ["Observed", facts ? h("div", { class: "who" }, facts) : null, h("pre", {}, said(data.content))];
    }
    case "tool.failed": return ["Failed", `${data.kind}: ${data.message}`];
    default: return [step.type, step.title];
  }
}

function pairs(input) {
  const entries = Object.entries(input || {});
  if (!entries.length) return h("span", { class: "who" }, "no arguments");
  return h("dl", { class: "pairs" }, entries.flatMap(([name, value]) =>
    [h("dt", {}, name), h("dd", {}, h("pre", {}, typeof value === "string" ? value : json(value)))]));
}

// --- filters -----------------------------------------------------------------------------------

const FILTERS = { all: "Everything", tools: "Tools", calls: "Model calls", messages: "Messages", odd: "What does not follow" };
function showFilters() {
  $("filters").replaceChildren(...Object.entries(FILTERS).map(([name, words]) =>
    h("button", { type: "button", "aria-pressed": String(state.filter === name), on: () => { state.filter = name; showFilters(); applyFilter(); } }, words)));
}

function applyFilter() {
  const wanted = { tools: "proposal-item", calls: "call", messages: "message" }[state.filter];
  for (const each of $("timeline").children) {
    const kind = each.dataset.kind;
    each.hidden = state.filter === "odd" ? !each.classList.contains("odd") : Boolean(wanted) && kind !== wanted && kind !== "turn";
  }
}

// --- the window --------------------------------------------------------------------------------

function openWindow(title, facts, text, cut, ...foot) {
  $("window-title").textContent = visible(title);
  $("window-facts").textContent = visible(facts);
  $("window-text").textContent = visible(text) + (cut ? `\n… (${number(cut)} characters more)` : "");
  $("window-foot").replaceChildren(...foot);
  if (!$("window").open) $("window").showModal();
  $("window-text").scrollTop = 0;
  $("window-text").focus();
}

async function showRecord(seq) {
  try {
    const found = await ask("record", { session: state.session, seq });
    const whole = h("a", { href: `api/raw?${new URLSearchParams({ session: state.session, seq })}`, download: `record-${seq}.json` },
      `Save the whole record (${number(found.bytes)} bytes)`);
    openWindow(`Record ${seq}: ${found.type}`, `hash ${found.hash}, after ${found.previous}`, found.text, found.cut, whole);
  } catch (error) { complain(error); }
}

async function showExchange(request) {
  try {
    const found = await ask("exchange", { session: state.session, request });
    openWindow(`Exchange ${request}`, "What was asked and what came back, from the records of this session", found.text, found.cut);
  } catch (error) { complain(error); }
}

// --- keys and the rest -------------------------------------------------------------------------

function move(by) {
  const items = [...$("timeline").children].filter((each) => !each.hidden && each.hasAttribute("tabindex"));
  if (!items.length) return;
  const at = items.indexOf(document.activeElement?.closest("#timeline > li"));
  const next = items[Math.min(Math.max(at + by, 0), items.length - 1)];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  j: () => move(1), k: () => move(-1), "/": () => $("search").focus(), t: () => switchTheme(),
  r: () => document.activeElement?.closest("#timeline > li")?.querySelector(".raw[aria-label]")?.click(),
  e: () => [...(document.activeElement?.closest("#timeline > li")?.querySelectorAll(".raw") || [])].find((each) => !each.hasAttribute("aria-label"))?.click(),
  "?": () => openWindow("Keys", "", "j, k     next and previous step\nr        the record as stored\ne        the exchange of a model call\n/        find a session\nt        light or dark\nEsc      close this"),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("window").open) return;
  if (event.target.closest?.("input")) { if (event.key === "Escape") event.target.blur(); return; }
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

function switchTheme() {
  const dark = document.documentElement.dataset.theme === "dark" ||
    (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", document.documentElement.dataset.theme); } catch { /* not kept, then */ }
}

try { const theme = localStorage.getItem("theme"); if (theme) document.documentElement.dataset.theme = theme; } catch { /* the system's, then */ }
$("theme").addEventListener("click", switchTheme);
$("window-close").addEventListener("click", () => $("window").close());
$("window").addEventListener("click", (event) => { if (event.target === $("window")) $("window").close(); });
$("more").addEventListener("click", () => readOn(state.token).catch(complain));
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); $("timeline").focus(); });
let typing = 0;
$("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => listSessions(), 150); });
addEventListener("hashchange", openSession);
addEventListener("focus", () => { if (listed <= 100) listSessions(); }); // there may be new ones
showFilters();
listSessions();
openSession();
