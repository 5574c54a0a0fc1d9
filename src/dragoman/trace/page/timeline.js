"use strict";
// The timeline: one item for each message, model call and proposal, with duration bars.

// --- the timeline ------------------------------------------------------------------------------

function place(step) {
  if (step.type === "session.finished") state.finished = true;
  else if (step.type === "session.resumed" || step.type === "turn.started") state.finished = false;
  if (step.notes && step.notes.length) state.odd += 1;
  const data = step.data || {};
  if (step.type === "turn.started") return add(turnItem(step, data));
  if (step.intent) return placeInProposal(step, data);
  if (step.type === "message.recorded") return placeMessage(step, data);
  if (step.type === "context.summarised") return add(lineItem(step, "other", details("Summary of earlier messages", markdown(data.text || ""))));
  if (step.type === "llm.call_started" || step.type === "llm.call_completed" || step.type === "llm.call_failed") return placeCall(step, data);
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

const details = (title, ...body) => h("details", {}, h("summary", {}, title), body);

function rawButton(step) {
  const button = h("button", { class: "raw", type: "button", title: "The record as stored", "aria-label": `Record ${step.seq} as stored`,
    on: () => showRecord(step.seq) }, `#${step.seq}`);
  button.dataset.record = step.seq;
  return button;
}

function lineItem(step, kind, words, extra) {
  const minor = kind === "other" || kind === "told";
  const failed = step.type === "llm.call_failed" || step.type === "budget.exceeded";
  const element = item(step, kind, h("div", { class: "line" },
    h("div", { class: "words" }, words || step.title), extra || null, h("time", { datetime: step.at }, clock(step.at)), rawButton(step)));
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

// Proposals are recorded as they arrive, and the message they were part of once it is complete. The message
// is shown first; the numbers keep the order of the records.
function placeMessage(step, data) {
  const made = messageItem(step, data);
  const asked = data.message?.role === "assistant" && data.request_id ? state.asked.get(data.request_id) : null;
  if (asked && asked.isConnected) asked.after(made); else add(made);
}

function messageItem(step, data) {
  const message = data.message || {};
  if (message.role === "tool") return lineItem(step, "told", details("Result sent to the model", showText(plain(message.content))));
  const blocks = Array.isArray(message.content) ? message.content : [{ type: "text", text: String(message.content ?? "") }];
  const body = blocks.map((each) => block(each, message.role)).filter(Boolean);
  for (const loss of data.warnings || []) body.push(h("p", { class: "note" }, `Not sent as it is: ${loss.code} at ${loss.path}: ${loss.detail || ""}`));
  if (!body.some((each) => each.tagName !== "P") && blocks.every((each) => each.type === "tool_call")) {
    return lineItem(step, "message", blocks.map((each) => `Calls ${each.name}`).join(", "));
  }
  const who = message.role === "assistant" ? [data.provider, data.model].filter(Boolean).join(":") || "Assistant" : { user: "User", system: "System prompt" }[message.role] || message.role;
  const aside = data.in_context === false ? " (kept as evidence, not sent to the model again)" : "";
  return item(step, "message", h("div", { class: "card" },
    h("div", { class: "line" }, h("span", { class: "words who" }, who + aside), h("time", { datetime: step.at }, clock(step.at)), rawButton(step)), body));
}

function block(each, role) {
  if (each.type === "text" && !each.text) return null;
  if (each.type === "text") return role === "assistant" ? markdown(each.text) : h("div", { class: "said" }, each.text);
  if (each.type === "thinking") return details("Reasoning", h("div", { class: "said" }, each.text || "(not readable)"));
  if (each.type === "tool_call") return h("p", { class: "who" }, "Calls ", h("code", {}, each.name));
  return details(String(each.type), showJson(each));
}

function plain(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return json(content ?? "");
  return content.map((each) => (each.type === "text" ? each.text : `[${each.type}]`)).join("\n");
}

// One line per call: first what was asked, then what came of it.
function placeCall(step, data) {
  const key = `${data.request_id} ${data.attempt || 0}`;
  const before = data.request_id ? state.calls.get(key) : null;
  const made = lineItem(step, "call", callWords(step, data), data.request_id && !DATA ? h("span", { class: "tools" },
    h("button", { class: "raw", type: "button", title: "The request and the reply", on: () => showExchange(data.request_id) }, "exchange")) : null);
  if (data.request_id) state.asked.set(data.request_id, made);
  if (step.type === "llm.call_started") { if (data.request_id) state.calls.set(key, made); return add(made); }
  const start = data.at ? data.at * 1000 : Date.parse(step.at) - data.latency_ms;
  if (data.latency_ms !== undefined) addSpan(made, start, start + data.latency_ms, "call", "model call");
  state.calls.delete(key);
  if (before && before.isConnected) before.replaceWith(made); else add(made);
}

function callWords(step, data) {
  if (step.type !== "llm.call_completed") return [step.title, inboundWords(data.inbound)].filter(Boolean).join("  ·  ");
  const cached = data.cached_input_tokens ? ` (${number(data.cached_input_tokens)} cached)` : "";
  const count = (value) => (value === undefined || value === null ? "?" : number(value));
  return [`${data.provider}:${data.model}`, `${count(data.input_tokens)} in${cached}`, `${count(data.output_tokens)} out`,
    duration(data.latency_ms), data.cost_usd === undefined ? "price unknown" : money(data.cost_usd), data.stop_reason,
    data.operation && data.operation !== "chat" ? data.operation : "", inboundWords(data.inbound)].filter(Boolean).join("  ·  ");
}

// The client's side of a call that came through a gateway.
function inboundWords(inbound) {
  if (!inbound) return "";
  return [`client over ${inbound.wire}`, inbound.key ? `key ${inbound.key}` : "", inbound.name ? `asked for ${inbound.name}` : "",
    inbound.status ? `HTTP ${inbound.status}` : "", inbound.error || ""].filter(Boolean).join(", ");
}

// --- duration bars -----------------------------------------------------------------------------

// Each item has spans of time; all bars share one scale, so that they form a waterfall. Time in which nothing
// was under way, such as a night between two runs, is cut to IDLE.
const IDLE = 500;
function addSpan(element, start, end, kind, words) {
  if (!(end >= start)) return;
  let track = element.querySelector(":scope > .track");
  if (!track) { track = h("div", { class: "track", role: "img" }); element.append(track); element.spans = []; }
  const bar = h("i", { class: kind });
  element.spans.push({ start, end, bar, words });
  track.setAttribute("aria-label", element.spans.map((span) => `${span.words} ${duration(span.end - span.start)}`).join(", "));
  track.title = track.getAttribute("aria-label");
  track.append(bar);
}

function layBars() {
  const spans = [...$("timeline").children].flatMap((each) => each.spans || []).sort((a, b) => a.start - b.start);
  if (!spans.length) return;
  let covered = spans[0].start, skipped = 0;
  for (const span of spans) {
    if (span.start - covered > IDLE) { skipped += span.start - covered - IDLE; }
    covered = Math.max(covered, span.end);
    span.at = span.start - skipped;
  }
  const first = spans[0].at, total = Math.max(...spans.map((span) => span.at + span.end - span.start)) - first || 1;
  for (const span of spans) {
    span.bar.style.left = `${((span.at - first) / total) * 100}%`;
    span.bar.style.width = `${((span.end - span.start) / total) * 100}%`;
  }
}

// --- a proposal and what became of it ----------------------------------------------------------

const STAGES = ["Intent", "Decision", "Execution", "Observation"];
const MEANS = { // the stage a record belongs to, how it stands, and the chip
  "tool_intent.proposed": [0, "done", "proposed", "wait"],
  "tool_intent.validated": [0, "done", null, null],
  "tool_intent.rejected": [0, "stopped", "rejected", "bad"],
  "tool_intent.closed": [3, "stopped", "closed", "wait"],
  "permission.requested": [1, "now", "waiting for a decision", "wait"],
  "permission.granted": [1, "done", "allowed", "wait"],
  "permission.denied": [1, "stopped", "denied", "bad"],
  "tool.started": [2, "now", "running", "wait"],
  "tool.restarted": [2, "now", "running again", "wait"],
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
  if (step.type === "tool_intent.proposed") { proposal.input = json(data.input); proposal.gist.textContent = visible(gist(data.input)); }
  follows(proposal, step, data);
  proposal.parts.append(part(step, data, proposal));
  for (const note of step.notes || []) { proposal.item.classList.add("odd"); proposal.item.append(h("p", { class: "note" }, note)); }
  if (step.notes && step.notes.length) proposal.card.open = true;
}

// What a record changes of its card: the spans of its bar, its decision form, and whether it is folded.
function follows(proposal, step, data) {
  const at = Date.parse(step.at);
  if (step.type === "permission.requested") proposal.asked = at;
  if (step.type === "permission.granted" || step.type === "permission.denied") {
    if (proposal.asked) addSpan(proposal.item, proposal.asked, at, "waited", "waited for a decision");
    proposal.asked = null;
    proposal.byRule = step.type === "permission.granted" && !proposal.wasAsked && step.actor !== "user";
  }
  if (step.type === "permission.requested") proposal.wasAsked = true;
  if (step.type === "tool_intent.validated") proposal.reads = data.side_effect === "read" || data.side_effect === "none";
  if (step.type === "tool.started" || step.type === "tool.restarted") proposal.started = at;
  if ((step.type === "tool.observed" || step.type === "tool.failed") && proposal.started) {
    addSpan(proposal.item, proposal.started, Math.max(at, proposal.started + (data.duration_ms || 0)), "ran", "ran");
  }
  // A read that a rule allowed and that went well is one line: there was nothing to decide.
  if (step.type === "tool.observed" && proposal.reads && proposal.byRule && !data.is_error && !proposal.item.classList.contains("odd")) proposal.card.open = false;
}

// The argument that tells most: the first text among them.
function gist(input) {
  const found = Object.values(input || {}).find((value) => typeof value === "string" && value) || "";
  const line = found.split("\n")[0];
  return line.length > 80 ? `${line.slice(0, 80)}…` : line;
}

function makeProposal(step, data) {
  const chip = h("span", { class: "chip" });
  const short = h("span", { class: "gist mono" });
  const stages = STAGES.map((name) => h("li", {}, name));
  const parts = h("div", { class: "parts" });
  const form = h("div", { class: "decide", hidden: true });
  const card = h("details", { class: "proposal", open: true },
    h("summary", {}, h("strong", {}, data.tool_name || step.intent), short, h("time", { class: "who", datetime: step.at }, clock(step.at)), chip),
    h("ol", { class: "stages", "aria-label": "Stages" }, stages), parts, form);
  return { item: item({ ...step, notes: [] }, "proposal-item", card), card, chip, gist: short, stages, parts, form, input: null };
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
    case "tool_intent.validated": return ["Checked", `Effect: ${data.side_effect}${(data.paths || []).length ? `, on ${data.paths.join(", ")}` : ""}`];
    case "tool_intent.rejected": return ["Rejected", `${data.problem}: ${data.detail || ""}`];
    case "tool_intent.closed": return ["Closed", data.reason];
    case "permission.requested": return ["Asked", data.reason || "A decision is needed"];
    case "permission.granted": return ["Allowed", by, reason, data.input ? h("div", {}, h("p", { class: "who" }, "Input changed to"), pairs(data.input)) : null];
    case "permission.denied": return ["Denied", by, reason];
    case "tool.started": {
      const same = json(data.input) === proposal.input;
      const how = data.context && Object.keys(data.context).length ? details("Environment", showJson(data.context)) : null;
      return ["Ran", same ? "With the proposed input" : pairs(data.input), how];
    }
    case "tool.restarted": return ["Ran again", `With the same input, attempt ${data.attempt}`];
    case "tool.observed": {
      const facts = [data.exit_code !== undefined ? `exit ${data.exit_code}` : "", data.is_error ? "error" : "", data.truncated ? "truncated" : "",
        data.duration_ms !== undefined ? duration(data.duration_ms) : ""].filter(Boolean).join(", ");
      return ["Observed", facts ? h("div", { class: "who" }, facts) : null, showText(plain(data.content))];
    }
    case "tool.failed": return ["Failed", `${data.kind}: ${data.message}`];
    default: return [step.type, step.title];
  }
}

function pairs(input) {
  const entries = Object.entries(input || {});
  if (!entries.length) return h("span", { class: "who" }, "No arguments");
  const isChange = typeof input.old === "string" && typeof input.new === "string";
  const shown = isChange ? entries.filter(([name]) => name !== "old" && name !== "new") : entries;
  return [h("dl", { class: "pairs" }, shown.flatMap(([name, value]) =>
    [h("dt", {}, name), h("dd", {}, typeof value === "string" ? showText(value) : showJson(value))])), isChange ? showChange(input.old, input.new) : null];
}
