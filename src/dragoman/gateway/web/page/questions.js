"use strict";
// The queue of questions over all sessions of the service: what waits, and who answered what, when.

site.pages.questions = async (main, query, isCurrent) => {
  const found = await site.ask("questions");
  if (!isCurrent()) return;
  const said = h("div", { role: "status" }), trouble = h("p", { class: "note", role: "alert" });
  async function decide(question, facts) {
    const { reason, ...rest } = facts;
    const body = { session: question.session, intent: question.id, ...rest, ...(reason ? { reason } : {}) };
    try {
      const made = await site.ask("questions", { body });
      await site.pages.questions(main, query, isCurrent);
      main.querySelector("[role=status]").replaceChildren(h("p", { class: made.allowed ? "chip good" : "chip bad" }, `${made.allowed ? "Allowed" : "Denied"} by ${made.by}`));
    } catch (error) { trouble.textContent = visible(error.message); }
  }
  function card(question) {
    const { pending } = question, words = pending.question || `${pending.tool_name} waits for a ${pending.kind}`;
    const reason = h("input", { type: "text", "aria-label": `Reason about ${pending.tool_name}`, placeholder: "Reason, for the model", autocomplete: "off" });
    const button = (text, allowed, kind) => h("button", { type: "button", class: kind, on: () => decide(question, { allowed, reason: reason.value.trim() }) }, text);
    return h("section", { class: "card", "aria-label": words }, h("h2", {}, words),
      h("p", { class: "soft" }, `${question.agent}, started by ${question.by}, waits since ${when(pending.since)} UTC. Session ${question.session}.`),
      pending.input ? copyable(h("pre", {}, JSON.stringify(pending.input, null, 2)), JSON.stringify(pending.input)) : null,
      pending.kind === "result" ? h("p", { class: "soft" }, "The result comes from the program that runs this call.")
        : found.may_answer ? h("div", { class: "row" }, reason, button("Allow", true, "primary"), button("Deny", false, "button danger")) : null);
  }
  const verdict = (each) => (each.kind === "result" ? "gave the result" : each.allowed ? "allowed" : "denied");
  main.replaceChildren(h("div", { class: "sheet" }, h("header", { class: "bar" }, h("h1", {}, "Questions")), said, trouble,
    h("h2", {}, "Waiting"), found.open.length ? h("div", { class: "stack" }, found.open.map(card)) : h("p", { class: "soft" }, "No session waits."),
    found.has_more ? h("p", { class: "soft" }, "There are more; these are the oldest.") : null,
    h("h2", {}, "Answered"), table("Answered questions", ["When (UTC)", "Who", "What", "Call", "Agent", "Reason", "Session"],
      found.answered.map((each) => [when(each.answered_at), each.answered_by || "unknown", verdict(each), each.tool_name, each.agent, each.reason, each.session]), "No answers yet.")));
};
