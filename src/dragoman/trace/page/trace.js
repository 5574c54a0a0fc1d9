"use strict";
// The page: reads the log over HTTP, or from the data of an exported file, and follows sessions as they grow.
// Everything that comes from the log goes through render.js, which sets it as text.

const PAGE = 300;
const DATA = $("data") ? JSON.parse($("data").textContent) : null; // of an exported file
const FOLLOW = 1500; // milliseconds between two looks at a session under way
const REFRESH = 5000; // at finished sessions, which may be resumed, and at the list
const state = { session: null, last: 0, filter: "all", timer: 0, token: 0, matches: [], match: -1, questions: new Map() };

// --- values as text ----------------------------------------------------------------------------

function showCost(cost, calls, unpriced) {
  if (!calls) return "";
  return calls > (unpriced || 0) ? money(cost || 0) + (unpriced ? "+" : "") : "cost unknown";
}

// --- asking the server -------------------------------------------------------------------------

async function ask(name, facts) {
  if (DATA) return lookUp(name, facts);
  return (await request(`api/${name}?${new URLSearchParams(facts)}`)).json();
}

function lookUp(name, facts) {
  if (name === "steps") {
    const steps = DATA.steps.filter((step) => step.seq > facts.after).slice(0, facts.limit);
    return { steps, last: steps.length ? steps[steps.length - 1].seq : facts.after };
  }
  if (name === "find") {
    const query = facts.query.toLowerCase();
    return { matches: DATA.steps.filter((step) => texts(step.data).some((text) => text.toLowerCase().includes(query))).map(({ seq }) => ({ seq })) };
  }
  if (name === "record") return DATA.records[facts.seq];
  return DATA[name] || { sessions: [], total: 0 };
}

function texts(value) {
  if (typeof value === "string") return [value];
  return value && typeof value === "object" ? Object.values(value).flatMap(texts) : [];
}

// --- the list of sessions ----------------------------------------------------------------------

let listed = 0, shownList = "";
async function listSessions(more, quietly) {
  if (DATA) return;
  const offset = more ? listed : 0;
  try {
    const found = await ask("sessions", { query: $("search").value.trim(), sort: $("sort").value, kind: $("kind").value,
      outcome: $("by-outcome").value, model: $("by-model").value.trim(), offset, limit: 100 });
    const same = JSON.stringify(found) === shownList;
    // Somebody who is choosing from the list does not want it to move.
    if (quietly && (same || listed > 100 || $("sessions").contains(document.activeElement))) return;
    shownList = more ? "" : JSON.stringify(found);
    if (!more) $("sessions").replaceChildren();
    $("sessions").querySelector("button")?.remove();
    for (const entry of found.sessions) $("sessions").append(sessionLink(entry));
    listed = offset + found.sessions.length;
    if (listed < found.total) {
      $("sessions").append(h("button", { type: "button", on: () => listSessions(true) }, `${number(found.total - listed)} more`));
    }
    if (!found.total) $("sessions").append(h("p", { class: "who" }, isFiltered() ? "No session fits." : "No sessions yet."));
    if (!state.session && found.sessions.length && !location.hash) location.hash = encodeURIComponent(found.sessions[0].session);
    markCurrent();
  } catch (error) { complain(error); }
}

const isFiltered = () => ["search", "kind", "by-outcome", "by-model"].some((id) => $(id).value.trim());

const TONES = { completed: "good", failed: "bad", cancelled: "wait", exhausted: "wait" };
function sessionLink(entry) {
  const facts = [showCost(entry.cost_usd, entry.calls, entry.unpriced), entry.turns ? plural(entry.turns, "turn") : entry.calls ? plural(entry.calls, "call") : ""];
  const link = h("a", { href: "#" + encodeURIComponent(entry.session), title: [entry.model, plural(entry.records, "record")].filter(Boolean).join(", ") },
    h("span", { class: "title" }, entry.goal || entry.session),
    h("span", { class: "under" }, h("span", { class: `state ${TONES[entry.outcome] || ""}` }, entry.outcome || "not finished"),
      h("span", {}, facts.filter(Boolean).join(" · ")), h("span", { class: "when" }, entry.kind)),
    h("span", { class: "under" }, h("span", {}, entry.model || entry.session), h("span", { class: "when" }, day(entry.updated))),
    entry.matches ? h("span", { class: "excerpt" }, `${plural(entry.matches, "match").replace("matchs", "matches")}: ${entry.excerpt}`) : null);
  link.dataset.session = entry.session;
  return link;
}

function markCurrent() {
  for (const link of $("sessions").querySelectorAll("a")) {
    if (link.dataset.session === state.session) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// --- the quality of tool calls -----------------------------------------------------------------

// Names of sessions are encoded in the address, so none of them is this one.
const TOOLS = "#:tools";
const FAULTS = { faulty: "Faulty", invalid_json: "Invalid JSON", unknown_name: "Unknown name", schema_mismatch: "Wrong schema" };
const percent = (share) => `${(100 * share).toFixed(1)} %`;
async function showTools(token) {
  const { models } = await ask("tools", {});
  if (token !== state.token) return;
  const rate = ({ share, interval }) => [percent(share), h("small", {}, ` ${interval.map(percent).join(" to ")}`)];
  const rows = models.map((each) => [each.name, each.server || "", number(each.calls), ...Object.keys(FAULTS).map((name) => rate(each[name]))]);
  $("rates").replaceChildren(table("Quality of tool calls", ["Model", "Server", "Calls", ...Object.values(FAULTS)], rows, "The log has no tool calls."));
}

// --- one session -------------------------------------------------------------------------------

async function openSession() {
  const isTools = !DATA && location.hash === TOOLS;
  let session = DATA ? DATA.session : "";
  if (!DATA && !isTools) try { session = decodeURIComponent(location.hash.slice(1)); } catch { session = location.hash.slice(1); }
  clearTimeout(state.timer);
  const token = ++state.token;
  Object.assign(state, { session: session || null, last: 0, proposals: new Map(), calls: new Map(), asked: new Map(), finished: false,
    odd: 0, matches: [], match: -1 });
  $("timeline").replaceChildren();
  $("totals").replaceChildren();
  for (const id of ["outcome", "chain", "live"]) { $(id).textContent = ""; $(id).className = "chip"; }
  $("session").hidden = !session;
  $("empty").hidden = Boolean(session) || isTools;
  $("tools").hidden = !isTools;
  $("more").hidden = true;
  $("nothing").hidden = true;
  complain(null);
  markCurrent();
  if (isTools) try { document.title = "Tool calls · trace"; await showTools(token); } catch (error) { complain(error); }
  if (!session) return;
  $("name").textContent = visible(session);
  $("goal").textContent = visible(session);
  document.title = `${visible(session)} · trace`;
  if (!DATA) $("save").href = `api/export?${new URLSearchParams({ session })}`;
  try {
    await readOn(token);
    await Promise.all([showTotals(token), checkChain(token)]);
    const query = $("search").value.trim();
    if (query.length > 2 && !$("find").value) $("find").value = query;
    if ($("find").value) await findInSession(false);
  } catch (error) { if (token === state.token) complain(error); }
}

async function readOn(token) {
  const found = await ask("steps", { session: state.session, after: state.last, limit: PAGE });
  if (token !== state.token) return 0;
  if (!found.steps.length && !state.last) throw new Error(`the log has no session ${state.session}`);
  const main = $("main");
  const atEnd = state.last > 0 && main.scrollHeight - main.scrollTop - main.clientHeight < 80;
  for (const step of found.steps) place(step);
  state.last = found.last;
  $("more").hidden = found.steps.length < PAGE;
  if (found.steps.length) { showFilters(); applyFilter(); layBars(); showQuestions(); }
  if (atEnd && found.steps.length && $("more").hidden) main.scrollTop = main.scrollHeight;
  if (found.steps.length < PAGE) follow(token);
  return found.steps.length;
}

// A session under way is followed: reading never holds its writer up.
function follow(token) {
  if (DATA) return;
  clearTimeout(state.timer);
  $("live").textContent = state.finished ? "" : "Live: new records appear here";
  state.timer = setTimeout(async () => {
    if (token !== state.token) return;
    if (document.hidden) return follow(token);
    try {
      // A chain that takes long to check is not checked again at every step of a session under way.
      if (await readOn(token)) await Promise.all([showTotals(token), state.slow && !state.finished ? null : checkChain(token)]);
    } catch (error) { complain(error); follow(token); }
  }, state.finished ? REFRESH : FOLLOW);
}

async function showTotals(token) {
  const totals = await ask("totals", { session: state.session });
  if (token !== state.token) return;
  if (totals.goal) { $("goal").textContent = visible(totals.goal); document.title = `${visible(totals.goal).slice(0, 80)} · trace`; }
  $("outcome").textContent = totals.outcome || "not finished";
  $("outcome").className = `chip ${TONES[totals.outcome] || ""}`;
  const known = totals.calls > (totals.unpriced || 0);
  const cost = known ? money(totals.cost_usd || 0) : totals.calls ? "unknown" : "—";
  const rows = [
    ["Turns", number(totals.turns)],
    ["Model calls", number(totals.calls), totals.failed_calls ? `${number(totals.failed_calls)} failed` : ""],
    ["Tokens in", number(totals.input_tokens), totals.cached_input_tokens ? `${number(totals.cached_input_tokens)} cached` : ""],
    ["Tokens out", number(totals.output_tokens)],
    ["Cost", cost, known && totals.unpriced ? `+ ${number(totals.unpriced)} unknown` : ""],
    ["Tool calls", number(totals.proposed), `${number(totals.allowed)} allowed, ${number(totals.denied)} denied, ${number(totals.ran)} ran`],
  ];
  $("totals").replaceChildren(...figures(rows));
}

async function checkChain(token) {
  $("chain").textContent = "Checking the chain…";
  $("chain").className = "chip wait";
  const began = performance.now();
  const chain = await ask("chain", { session: state.session });
  if (token !== state.token) return;
  state.slow = performance.now() - began > 1500;
  const found = chain.break;
  $("chain").textContent = chain.ok ? `Chain verified, ${plural(chain.records, "record")}${DATA ? " at export" : ""}`
    : visible(`Chain broken at record ${found.seq}: ${found.problem}: ${found.detail}`);
  $("chain").className = `chip ${chain.ok ? "good" : "bad"}`;
}

// --- filters -----------------------------------------------------------------------------------

const FILTERS = { all: "All", tools: "Tools", calls: "Model calls", messages: "Messages", odd: "Evidence problems" };
function showFilters() {
  const focused = $("filters").contains(document.activeElement) ? document.activeElement.dataset.name : null;
  const odd = state.odd ? { odd: `${FILTERS.odd} (${number(state.odd)})` } : {};
  $("filters").replaceChildren(...choices({ ...FILTERS, ...odd }, state.filter, choose));
  if (focused) $("filters").querySelector(`[data-name="${focused}"]`)?.focus();
}

async function choose(name) {
  state.filter = name;
  showFilters();
  applyFilter();
  // "No problems" is true of the complete session alone.
  if (name === "odd") try { await readUntil(Infinity); } catch (error) { complain(error); }
}

async function readUntil(seq) {
  const token = state.token;
  while (!$("more").hidden && state.last < seq && token === state.token) await readOn(token);
}

function applyFilter() {
  const wanted = { tools: "proposal-item", calls: "call", messages: "message" }[state.filter];
  let shown = 0;
  for (const each of $("timeline").children) {
    const kind = each.dataset.kind;
    each.hidden = state.filter === "odd" ? !each.classList.contains("odd") : Boolean(wanted) && kind !== wanted && kind !== "turn";
    if (!each.hidden && (kind !== "turn" || state.filter === "odd")) shown += 1;
  }
  if (!shown) for (const each of $("timeline").children) if (state.filter !== "all") each.hidden = true;
  $("nothing").hidden = shown > 0 || !state.last;
  $("nothing").textContent = state.filter === "odd" ? "No evidence problems: every step follows from the records before it."
    : "This session has nothing of this kind.";
}

// --- finding in the session --------------------------------------------------------------------

async function findInSession(jump) {
  const query = $("find").value.trim();
  const token = state.token;
  const found = query ? await ask("find", { session: state.session, query }) : { matches: [] };
  if (token !== state.token) return;
  Object.assign(state, { matches: found.matches, match: -1 });
  for (const id of ["find-previous", "find-next"]) $(id).hidden = found.matches.length < 1;
  $("found").textContent = query ? plural(found.matches.length, "match").replace("matchs", "matches") : "";
  highlight(query);
  if (jump && found.matches.length) await showMatch(0);
}

async function showMatch(at) {
  const { seq } = state.matches[at];
  state.match = at;
  $("found").textContent = `${number(at + 1)} of ${number(state.matches.length)}`;
  await readUntil(seq);
  const place = $("timeline").querySelector(`[data-record="${seq}"]`)?.closest("#timeline > li") || $("timeline").querySelector(`[data-seq="${seq}"]`);
  if (!place) return;
  place.hidden = false;
  const query = $("find").value.trim().toLowerCase();
  for (const each of place.querySelectorAll("details")) if (each.textContent.toLowerCase().includes(query)) each.open = true;
  for (const each of $("timeline").querySelectorAll(".hit")) each.classList.remove("hit");
  place.classList.add("hit");
  place.scrollIntoView({ block: "center" });
  highlight($("find").value.trim());
}

// The highlight is drawn by the browser over the text; the elements stay as they are.
const LONGEST_MARKED = 2000; // places
function highlight(query) {
  if (!globalThis.CSS?.highlights) return;
  CSS.highlights.delete("found");
  if (!query) return;
  const ranges = [], wanted = query.toLowerCase();
  const walker = document.createTreeWalker($("timeline"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode() && ranges.length < LONGEST_MARKED) {
    const text = walker.currentNode.data.toLowerCase();
    for (let at = text.indexOf(wanted); at >= 0 && text.length === walker.currentNode.data.length; at = text.indexOf(wanted, at + wanted.length)) {
      const range = new Range();
      range.setStart(walker.currentNode, at);
      range.setEnd(walker.currentNode, at + wanted.length);
      ranges.push(range);
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

const step = (by) => { if (state.matches.length) showMatch((state.match + by + state.matches.length) % state.matches.length).catch(complain); };

// --- the window --------------------------------------------------------------------------------

function openWindow(title, facts, text, cut, ...foot) {
  $("window-title").textContent = visible(title);
  $("window-facts").textContent = visible(facts);
  const whole = text + (cut ? `\n… (${number(cut)} characters more)` : "");
  $("window-text").replaceChildren(facts ? showJson(whole) : h("pre", {}, whole));
  $("window-foot").replaceChildren(...foot);
  if (!$("window").open) $("window").showModal();
  $("window-text").scrollTop = 0;
  $("window-text").focus();
}

async function showRecord(seq) {
  try {
    const found = await ask("record", { session: state.session, seq });
    const whole = h("a", { class: "button", href: `api/raw?${new URLSearchParams({ session: state.session, seq })}`, download: `record-${seq}.json` },
      `Save the complete record (${number(found.bytes)} bytes)`);
    openWindow(`Record ${seq}: ${found.type}`, `hash ${found.hash}, after ${found.previous}`, found.text, found.cut, ...(DATA ? [] : [whole]));
  } catch (error) { complain(error); }
}

async function showExchange(request) {
  try {
    const found = await ask("exchange", { session: state.session, request });
    openWindow(`Exchange ${request}`, "The request and the reply, from the records of this session", found.text, found.cut);
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

const current = () => document.activeElement?.closest("#timeline > li");
const KEYS = {
  j: () => move(1), k: () => move(-1), "/": () => $("search").focus(), f: () => $("find").focus(), t: () => switchTheme(),
  n: () => step(1), p: () => step(-1),
  o: () => { const card = current()?.querySelector("details"); if (card) card.open = !card.open; },
  r: () => current()?.querySelector(".raw[aria-label]")?.click(),
  e: () => [...(current()?.querySelectorAll(".raw") || [])].find((each) => !each.hasAttribute("aria-label"))?.click(),
  "?": () => openWindow("Keys", "", ["j, k     next and previous step", "o        open or fold a card", "r        the record as stored",
    "e        the exchange of a model call", "f        find in this session", "n, p     next and previous match", "/        search all sessions",
    "t        light or dark", "Esc      close this"].join("\n")),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("window").open) return;
  if (event.target.closest?.("input, textarea, select")) { if (event.key === "Escape") event.target.blur(); return; }
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

$("window-close").addEventListener("click", () => $("window").close());
$("window").addEventListener("click", (event) => { if (event.target === $("window")) $("window").close(); });
$("more").addEventListener("click", () => readOn(state.token).catch(complain));
let typing = 0;
const soon = (act) => { clearTimeout(typing); typing = setTimeout(act, 150); };
for (const id of ["search", "by-model"]) $(id).addEventListener("input", () => soon(() => listSessions()));
for (const id of ["sort", "kind", "by-outcome"]) $(id).addEventListener("change", () => listSessions());
$("find").addEventListener("input", () => soon(() => findInSession(true).catch(complain)));
$("find").addEventListener("keydown", (event) => { if (event.key === "Enter") step(event.shiftKey ? -1 : 1); });
$("search").addEventListener("keydown", (event) => { if (event.key === "Enter") $("sessions").querySelector("a")?.click(); });
$("find-next").addEventListener("click", () => step(1));
$("find-previous").addEventListener("click", () => step(-1));
addEventListener("hashchange", openSession);
document.body.classList.toggle("single", Boolean(DATA));
$("save").hidden = $("to-tools").hidden = Boolean(DATA);
if (!DATA) setInterval(() => { if (!document.hidden) listSessions(false, true); }, REFRESH);
showFilters();
listSessions();
openSession();
readQuestions();
