"use strict";
// The page of a person who logged in: own keys, limits, budgets and spending, and how clients use a key.

const RIGHTS = { team: "Team", requests_per_minute: "Requests a minute", tokens_per_minute: "Tokens a minute", max_concurrency: "Calls at a time" };

site.pages.me = async (main, query, isCurrent) => {
  const [own, { clients }] = await Promise.all([site.ask("me"), askClients(site.facts.models[0])]);
  if (!isCurrent()) return;
  const said = h("div", { role: "status" }), trouble = h("p", { class: "note", role: "alert" });
  async function change(body) {
    try {
      const made = await site.ask("me", { body });
      await site.pages.me(main, query, isCurrent);
      main.querySelector("[role=status]").replaceChildren(made.key
        ? h("div", { class: "waiting" }, h("strong", {}, "Your key, shown this once"), copyable(h("pre", {}, made.key), made.key), made.old_until ? h("p", {}, `The old key is valid until ${when(made.old_until)} UTC.`) : null)
        : h("p", { class: "chip good" }, `${made.name} is deleted`));
    } catch (error) { trouble.textContent = visible(error.message); }
  }
  const isMade = own.keys.some((key) => key.id === own.name);
  const remove = (key) => h("button", { type: "button", class: "button danger", on: (event) => {
    if (event.target.dataset.sure) change({ action: "revoke", name: key.id });
    else { event.target.dataset.sure = 1; event.target.textContent = "Delete for good?"; }
  } }, "Delete");
  const card = (key) => h("section", { class: "card", "aria-label": key.id }, h("h2", {}, key.id, " ", key.blocked ? h("span", { class: "chip bad" }, "not valid") : h("span", { class: "chip good" }, "valid")),
    h("p", { class: "soft" }, [key.expires && `Valid until ${key.expires}.`, key.old_until && new Date(key.old_until) > new Date() && `The old key is valid until ${when(key.old_until)} UTC.`].filter(Boolean).join(" ")),
    own.creates ? h("div", { class: "row" }, h("button", { type: "button", class: "button", on: () => change({ action: "rotate", name: key.id }) }, "Rotate"), remove(key)) : null);
  const { rights } = own, lines = (rows, head) => table(head, [head, { n: "Requests" }, { n: "Tokens" }, { n: "Cost" }],
    rows.map((each) => [each.name, { n: number(each.requests) }, { n: `${number(each.input_tokens)} → ${number(each.output_tokens)}` }, { n: money(each.usd) }]), "Nothing yet.");
  main.replaceChildren(h("div", { class: "sheet" }, h("header", { class: "bar" }, h("h1", {}, "My access")), said, trouble,
    h("p", { class: "soft" }, `You are ${own.user}.`),
    h("h2", {}, "Keys"), h("div", { class: "stack" }, own.keys.map(card)),
    own.creates && !isMade ? h("div", { class: "row new" }, h("button", { class: "primary", type: "button", on: () => change({ action: "new" }) }, "Create my key")) : null,
    own.creates ? null : h("p", { class: "soft" }, "The keys of this gateway are in a file; its operator makes yours."),
    h("h2", {}, "Limits"), h("dl", { class: "pairs" }, h("dt", {}, "Models"), h("dd", {}, rights.models.join(", ").replace(/^\*$/, "all")),
      Object.entries(RIGHTS).filter(([name]) => rights[name]).map(([name, words]) => [h("dt", {}, words), h("dd", {}, typeof rights[name] === "number" ? number(rights[name]) : rights[name])])),
    showBudgets(own.budgets),
    h("h2", {}, `This month: ${money(own.spend.total.usd)}`), lines(own.spend.day, "Day"), lines(own.spend.model, "Model"),
    h("h2", {}, "Clients"), h("p", { class: "soft" }, "Put your key in place of unused."), showClients(clients)));
};
