"use strict";
// Decisions on the page, where the viewer was started with --approve: open questions, and answers to them.

let approvalToken = null;
async function readQuestions() {
  if (DATA) return;
  try {
    const found = await ask("questions", {});
    if (!found.approve) return;
    approvalToken = found.token;
    state.questions = new Map(found.questions.map((each) => [each.intent_id, each]));
    showQuestions();
  } catch (error) { complain(error); }
  setTimeout(readQuestions, FOLLOW);
}

function showQuestions() {
  const waiting = [...state.questions.values()];
  const names = waiting.map((each) => `${each.session} ${each.intent_id}`).join(" ");
  $("waiting").hidden = !waiting.length;
  if (waiting.length && $("waiting").dataset.names !== names) {
    $("waiting").replaceChildren(h("strong", {}, `${plural(waiting.length, "decision")} waiting`),
      h("ul", {}, waiting.map((each) => h("li", {}, h("a", { href: "#" + encodeURIComponent(each.session) }, each.tool_name), ` ${gist(each.input)}`))));
  }
  $("waiting").dataset.names = names;
  for (const [intent, proposal] of state.proposals || []) {
    const question = state.questions.get(intent);
    const wanted = Boolean(question) && question.session === state.session;
    if (wanted && !proposal.form.childElementCount) { proposal.form.append(...decisionForm(question)); proposal.card.open = true; }
    if (!wanted) proposal.form.replaceChildren();
    proposal.form.hidden = !wanted;
  }
}

const SCOPES = { once: "Only this call", session: "This tool, for this session", path: "These paths, for this session", prefix: "Commands that begin with…" };
function decisionForm(question) {
  const given = visible(json(question.input)); // hidden characters as JSON escapes: the same value, and no other text than is shown
  const scopes = Object.entries(SCOPES).filter(([name]) => (name !== "path" || question.paths?.length) && (name !== "prefix" || typeof question.input.command === "string"));
  const input = h("textarea", { rows: Math.min(given.split("\n").length + 1, 14), spellcheck: "false" });
  input.value = given;
  const scope = h("select", {}, scopes.map(([name, words]) => h("option", { value: name }, words)));
  const prefix = h("input", { type: "text", "aria-label": "Commands that begin with", hidden: true, spellcheck: "false" });
  prefix.value = String(question.input.command || "").trim().split(/\s+/)[0];
  scope.addEventListener("change", () => { prefix.hidden = scope.value !== "prefix"; });
  const reason = h("input", { type: "text", autocomplete: "off" });
  const status = h("span", { role: "status" });
  const decide = (allowed) => answer(question, { allowed, reason: reason.value, ...(allowed ? {
    scope: scope.value, ...(scope.value === "prefix" ? { prefix: prefix.value } : {}),
    ...(input.value === given ? {} : { input: JSON.parse(input.value) }) } : {}) }, status);
  const guarded = (allowed) => () => { try { decide(allowed); } catch { status.textContent = "The input is not JSON."; } };
  const paths = question.paths?.length ? h("p", { class: "who" }, `Paths: ${question.paths.join(", ")}`) : null;
  return [paths, h("label", {}, "Input, which you may change", input),
    h("div", { class: "row" }, h("label", {}, "Allow", scope), prefix, h("label", { class: "grow" }, "Reason", reason)),
    h("div", { class: "row" }, h("button", { type: "button", class: "allow", on: guarded(true) }, "Allow"),
      h("button", { type: "button", class: "deny", on: guarded(false) }, "Deny"), status)].filter(Boolean);
}

async function answer(question, decision, status) {
  status.textContent = "Sending…";
  try {
    await request("api/answer", { method: "POST", headers: { "Content-Type": "application/json", "X-Approval-Token": approvalToken },
      body: JSON.stringify({ session: question.session, intent: question.intent_id, ...decision }) });
    status.textContent = "Sent; the session takes it from here.";
  } catch (error) { status.textContent = visible(String(error.message || error)); }
}
