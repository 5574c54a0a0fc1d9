"use strict";
// The overview, the calls behind its numbers, the models, the clients and the keys.

const RANGES = { "1h": "Hour", "24h": "Day", "7d": "Week", "31d": "Month" };
const when = (at) => new Date(at).toISOString().slice(0, 16).replace("T", " ");
const SORTS = { input: "most tokens in first", output: "most tokens out first", usd: "most expensive first", latency: "slowest first" };
const callsLink = (range, facts, text) => h("a", { href: `#calls?${new URLSearchParams({ range, ...facts })}` }, text);

// An unknown price is not zero: it is counted apart.
function spend({ unpriced, requests, usd }) {
  if (!unpriced) return money(usd);
  return Number(usd) ? `${money(usd)} + ${Math.max(1, Math.round((100 * unpriced) / requests))} % unknown` : "unknown";
}

// --- charts --------------------------------------------------------------------------------------

// The next round number above a value, for the end of an axis.
function roundUp(value) {
  const unit = 10 ** Math.floor(Math.log10(value || 1));
  return unit * [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((each) => each * unit >= value * 0.9999);
}

function chart(title, data, value, write, range) {
  const slots = Array.from({ length: Math.floor((data.now - data.since) / data.step) + 1 }, (_, at) => data.since + at * data.step);
  const found = new Map(data.slots.map((each) => [each.start, each]));
  const sums = slots.map((at) => (found.has(at) ? value(found.get(at)) : 0));
  const highest = Math.max(...sums), top = roundUp(highest);
  const label = (at) => new Date(at).toISOString().slice(...(data.step < 86_400_000 ? [11, 16] : [5, 10]));
  const bars = slots.map((at, index) => h("a", {
    href: `#calls?${new URLSearchParams({ range, since: at, until: at + data.step })}`, class: "bar-slot", tabindex: sums[index] ? "0" : "-1",
    "aria-label": `${label(at)} UTC: ${write(sums[index])}`, title: `${label(at)} UTC: ${write(sums[index])}`,
  }, bar(sums[index] / top)));
  const every = Math.ceil(slots.length / 5);
  return h("figure", { class: "chart" }, h("figcaption", {}, title),
    highest ? [h("div", { class: "plot" }, h("div", { class: "y" }, h("span", {}, write(top)), h("span", {}, write(top / 2)), h("span", {}, write(0))), h("div", { class: "bars" }, bars)),
      h("div", { class: "x" }, slots.filter((_, at) => at % every === 0).map((at) => h("span", {}, label(at))), h("span", {}, "UTC"))]
      : h("p", { class: "soft" }, "Nothing in this time."));
}

// The height is set by script: the page's policy allows no style attribute in markup.
const bar = (share, element = h("i")) => { element.style.height = `${(share * 100).toFixed(2)}%`; return element; };

// --- the overview --------------------------------------------------------------------------------

// Each sum as a link to the calls behind it; what a number sums up comes first there.
function count(range, of, facts, latency) {
  const link = (name, text, more) => ({ n: callsLink(range, { ...facts, ...more }, text ?? number(of[name])) });
  return { requests: link("requests"), failed: of.failed ? link("failed", null, { failed: 1 }) : { n: "0" }, input: link("input", null, { sort: "input" }), output: link("output", null, { sort: "output" }),
    spend: link("usd", spend(of), { sort: "usd" }), latency: latency ? link("", `${duration(latency.p50)} / ${duration(latency.p95)}`, { answered: 1, sort: "latency" }) : { n: "—" } };
}

// The names of a kind with the largest sums, page by page; the server searches and sorts.
const HEADS = { requests: "Requests", failed: "Failed", input: "Tokens in", output: "Tokens out", usd: "Spend" };
function listing(range, kind, first) {
  const element = h("div", {}), body = h("div", {});
  const query = { range, of: kind, page: 1, search: "", order: "requests" };
  const search = h("input", { type: "search", placeholder: `Find a ${kind}`, "aria-label": `Find a ${kind}`, autocomplete: "off" });
  const order = h("select", { "aria-label": `Order of each ${kind}` }, Object.entries(HEADS).map(([name, text]) => h("option", { value: name }, `most ${text.toLowerCase()}`)));
  let turn = 0;
  const draw = (data) => body.replaceChildren(
    table(`By ${kind}`, [kind[0].toUpperCase() + kind.slice(1), ...Object.values(HEADS).map((n) => ({ n })), ...(kind === "model" ? [{ n: "p50 / p95" }] : [])],
      data.rows.map((each) => [each.name || `no ${kind}`, ...Object.values(count(range, each, { [kind]: each.name }, data.latency_of?.[each.name])).slice(0, kind === "model" ? 6 : 5)]), "Nothing in this time."),
    query.page > 1 || data.next_page ? h("p", { class: "row" }, turnTo("← Before", query.page > 1 ? query.page - 1 : null), `Page ${query.page}`, turnTo("After →", data.next_page)) : "");
  const turnTo = (text, page) => h("button", { type: "button", class: "button", disabled: page === null, on: () => load({ page }) }, text);
  async function load(change) {
    Object.assign(query, change);
    const mine = ++turn;
    try { const data = await site.ask("names", { query }); if (mine === turn) draw(data); }
    catch (error) { if (mine === turn) body.replaceChildren(h("p", { class: "note", role: "alert" }, error.message)); }
  }
  search.addEventListener("input", () => load({ search: search.value.trim(), page: 1 }));
  order.addEventListener("change", () => load({ order: order.value, page: 1 }));
  element.append(h("div", { class: "find" }, search, order), body);
  if (first) draw(first); else load({});
  return element;
}

// A part of the page that asks the server only when it is opened.
function unopened(title, make) {
  const element = h("details", { class: "proposal" }, h("summary", {}, h("strong", {}, title)));
  element.addEventListener("toggle", () => { if (element.open && element.children.length === 1) element.append(make()); });
  return element;
}

site.pages.overview = async (main, query, isCurrent) => {
  const range = RANGES[query.get("range")] ? query.get("range") : "24h";
  const data = await site.ask("overview", { query: { range } });
  if (!isCurrent()) return;
  const all = count(range, data.total, {}, data.latency), { requests, unpriced, failed } = data.total;
  const shown = [["Requests", all.requests.n, data.live.length ? `${number(data.live.length)} under way` : ""],
    ["Spend", all.spend.n, unpriced ? callsLink(range, { unpriced: 1 }, `${plural(unpriced, "call")} without a known price`) : ""],
    ["Tokens in", all.input.n], ["Tokens out", all.output.n], ["Latency p50 / p95", all.latency.n],
    ["Failed", all.failed.n, requests ? `${((100 * failed) / requests).toFixed(1)} %` : ""]];
  main.replaceChildren(h("div", { class: "sheet" },
    h("header", { class: "bar" }, h("h1", {}, "Overview"), h("div", { class: "filters", role: "group", "aria-label": "Time" },
      choices(RANGES, range, (name) => { location.hash = `overview?range=${name}`; }))),
    h("dl", { id: "totals" }, figures(shown)),
    h("div", { class: "charts" },
      chart("Requests", data, (of) => of.requests, (value) => number(value), range),
      chart("Spend with a known price", data, (of) => Number(of.usd), (value) => `$${Number(value.toPrecision(2))}`, range)),
    h("h2", {}, "Models"), listing(range, "model", { ...data.models, latency_of: data.latency_of }),
    h("h2", {}, "Keys"), listing(range, "key", data.keys),
    h("h2", {}, "Users, teams and tags"), ["user", "team", "tag"].map((kind) => unopened(`By ${kind}`, () => listing(range, kind))),
    h("h2", {}, "Errors"), table("Errors", ["Error", { n: "Requests" }], data.errors.rows.map((each) =>
      [each.name, { n: callsLink(range, { error: each.name }, number(each.requests)) }]), "No errors."),
    data.lost.length ? [h("h2", {}, "Clients that lose reasoning"), table("Clients that lose reasoning", ["Model", "API", "Key", { n: "Requests" }, "Last", "Sessions"], data.lost.map((each) =>
      [each.model, each.wire, each.key || "no key", { n: number(each.requests) }, `${when(each.at)} UTC`, sessions(each.sessions)])),
    h("p", { class: "soft" }, "These clients do not send back the reasoning before their calls. --store keeps it; see Reasoning through the gateway.")] : null,
    data.verdicts.length ? [h("h2", {}, "Guards"), table("Guards", ["Judge", "Model", "Stage", "Verdict", { n: "Times" }], data.verdicts.map((each) =>
      [each.judge, each.model, each.stage, each.action === "block" ? h("span", { class: "chip bad" }, "block") : each.action, { n: number(each.count) }])),
    h("p", { class: "soft" }, "Verdicts since the gateway started. The log has each by itself.")] : null,
    h("h2", {}, "Budgets"), h("p", { class: "soft" }, "Those with the smallest part left come first."), table("Budgets", ["Account", "Period", { n: "Budget" }, { n: "Left" }, "At the present rate"], data.budgets.map((each) =>
      [each.kind === "key" ? each.name : `${each.kind} ${each.name}`, PERIODS[each.period], { n: money(each.limit) }, { n: callsLink("31d", { [each.kind]: each.name, sort: "usd" }, money(each.left)) },
        each.empty_at === null ? (Number(each.spent) ? "lasts until the period ends" : "nothing is spent") : each.empty_at <= data.now ? h("span", { class: "chip bad" }, "exhausted") : `exhausted ${when(each.empty_at)} UTC`]), "No key has a budget."),
    data.live.length ? [h("h2", {}, "Under way"), table("Under way", ["Key", "Model", { n: "Time" }, { n: "Bytes sent" }], data.live.map((each) =>
      [each.key || "no key", each.model, { n: duration(each.seconds * 1000) }, { n: number(each.bytes) }]))] : null));
};

const sessions = (names) => names.map((each) => site.facts.pages.includes("traces")
  ? h("a", { href: `ui/traces/#${encodeURIComponent(each)}` }, `${each} `) : `${each} `);

site.pages.calls = async (main, query, isCurrent) => {
  const facts = Object.fromEntries(query);
  const { calls, has_more: hasMore } = await site.ask("calls", { query: facts });
  if (!isCurrent()) return;
  const words = [facts.model, facts.key, facts.user, facts.team, facts.tag, facts.error, SORTS[facts.sort], facts.answered && "answered", facts.failed && "failed", facts.unpriced && "price unknown", facts.since && `from ${when(Number(facts.since))} UTC`].filter(Boolean);
  main.replaceChildren(h("div", { class: "sheet" }, h("p", {}, h("a", { href: `#overview?range=${facts.range || "24h"}` }, "← Overview")),
    h("h1", {}, "Calls"), h("p", { class: "chips" }, words.map((each) => h("span", { class: "chip" }, each))),
    table("Calls", ["Time (UTC)", "Model", "Key", "Outcome", { n: "Tokens" }, { n: "Cost" }, { n: "Latency" }, "Records"], calls.map((each) => [
      when(each.at), each.model, each.key || "no key", each.error ? h("span", { class: "chip bad" }, each.error) : String(each.status),
      { n: `${number(each.input)} → ${number(each.output)}` }, { n: each.unpriced ? "unknown" : money(each.usd) }, { n: duration(each.latency) },
      each.session && site.facts.pages.includes("traces") ? h("a", { href: `ui/traces/#${encodeURIComponent(each.session)}`, title: each.id }, "Trace") : each.id]), "No calls."),
    hasMore ? h("p", { class: "soft" }, `The first ${calls.length} are shown.`) : null));
};

// --- models --------------------------------------------------------------------------------------

const tone = (state) => (state === "ready" ? "good" : state.startsWith("not ") ? "" : "bad");
const write = (value) => (value === true ? "yes" : value === false ? "no" : typeof value === "number" ? number(value) : [value].flat().join(", "));
const rate = (price) => price.free ? "free" : price.search ? `$${price.search} per 1,000 searches` : `$${price.input ?? "?"} in, $${price.output ?? "?"} out`;

site.pages.models = async (main, query, isCurrent) => {
  const { models } = await site.ask("models", { query: query.has("check") ? { check: 1 } : {} });
  if (!isCurrent()) return;
  const card = (each) => h("details", { class: "proposal" }, h("summary", {}, h("strong", {}, each.name),
    h("span", { class: "gist" }, each.candidates.length ? `${each.strategy} group of ${each.candidates.length}` : each.served_by === each.name ? "" : each.served_by),
    h("span", { class: "rate" }, each.price ? rate(each.price) : "price unknown"), h("span", { class: `chip ${tone(each.state)}` }, each.state)),
  h("div", { class: "parts" },
    part("Price", each.price ? `${rate(each.price)}${each.price.free || each.price.search ? "" : ", US dollars per million tokens"}` : `Unknown: ${each.price_unknown}`),
    each.candidates.length ? part("Group", h("p", {}, each.strategy), h("ul", {}, each.candidates.map((one) => h("li", {}, h("code", {}, one.served_by), " ", h("span", { class: `chip ${tone(one.state)}` }, one.state))))) : null,
    part("Can do", Object.keys(each.capabilities).length ? h("dl", { class: "pairs known" }, Object.entries(each.capabilities).map(([name, fact]) =>
      [h("dt", {}, name.replace(/^supports_/, "").replaceAll("_", " ")), h("dd", {}, write(fact.value), h("small", {}, ` ${fact.source}${fact.by ? `, ${fact.by}` : ""}${fact.at ? `, ${fact.at}` : ""}`))])) : "Nothing is known. Nothing is refused for that.")));
  const part = (name, ...content) => h("div", {}, h("span", { class: "what" }, name), h("div", {}, content));
  const list = h("div", { class: "stack" }, models.map(card));
  const search = h("input", { type: "search", placeholder: "Find a model", "aria-label": "Find a model", autocomplete: "off" });
  search.addEventListener("input", () => models.forEach((each, at) => { list.children[at].hidden = !`${each.name} ${each.served_by}`.toLowerCase().includes(search.value.trim().toLowerCase()); }));
  main.replaceChildren(h("div", { class: "sheet" }, h("header", { class: "bar" }, h("h1", {}, "Models"), h("div", { class: "find" }, search,
    h("a", { class: "button", href: `#models?check=${Date.now()}` }, "Check readiness"))), list));
};

// --- clients -------------------------------------------------------------------------------------

const askClients = (model) => site.ask("clients", { query: { url: location.origin, ...(model ? { model } : {}) } });

function showClients(clients, open = []) {
  const step = (each) => h("section", { class: "card", "aria-label": each.file || "Commands" }, h("h2", {}, each.file || "Commands"),
    copyable(h("pre", { tabindex: "0" }, each.text || each.run), each.text || each.run));
  return h("div", { class: "stack" }, clients.map((each) => h("details", { class: "proposal", open: open.includes(each.name) }, h("summary", {}, h("strong", {}, each.name), h("span", { class: "gist" }, each.trial)), each.steps.map(step))));
}

site.pages.clients = async (main, query, isCurrent) => {
  const { models } = site.facts, model = models.includes(query.get("model")) ? query.get("model") : models[0];
  const { clients } = await askClients(model);
  if (!isCurrent()) return;
  const select = h("select", { "aria-label": "Model" }, models.map((each) => h("option", { selected: each === model }, each)));
  select.addEventListener("change", () => { location.hash = `clients?${new URLSearchParams({ model: select.value })}`; });
  const open = [...main.querySelectorAll("details[open] strong")].map((each) => each.textContent);
  main.replaceChildren(h("div", { class: "sheet" }, h("header", { class: "bar" }, h("h1", {}, "Clients"), h("div", { class: "find" }, models.length ? select : null)),
    h("p", { class: "soft" }, "How coding agents use this gateway. If it has keys, put yours in place of unused."),
    showClients(clients, open)));
};

// --- keys ----------------------------------------------------------------------------------------

const FIELDS = { team: ["Team", "text"], models: ["Models, such as fast, anthropic:*", "text"], budget_usd: ["Budget in all, USD", "text"], budget_usd_month: ["Budget a month, USD", "text"],
  requests_per_minute: ["Requests a minute", "number"], tokens_per_minute: ["Tokens a minute", "number"], max_concurrency: ["Calls at a time", "number"], expires: ["Last day", "date"], on_loss: ["Fields that a model's wire lacks", ["warn", "drop", "reject"]] };
const PERIODS = { day: "a day", week: "a week", month: "a month", "30d": "30 days", total: "in all" };
const AMOUNT = { pattern: "[0-9]+([.][0-9]+)?", title: "An amount such as 20 or 0.50" };

function readFields(form, before) {
  const fields = {};
  for (const [name, [, kind]] of Object.entries(FIELDS)) {
    const text = form.elements[name].value.trim();
    const value = name === "models" ? text.split(/[\s,]+/).filter(Boolean) : text === "" ? null : kind === "number" ? Number(text) : text;
    if (name === "models" ? value.length : before || value !== null) fields[name] = value;
  }
  return fields;
}

const showBudgets = (budgets) => table("Budgets", ["Budget", "Period", { n: "Limit" }, { n: "Left" }],
  budgets.map((each) => [each.account, each.period, { n: money(each.limit) }, { n: money(each.left) }]), "No budgets.");

site.pages.keys = async (main, query, isCurrent) => {
  const { keys, teams, audit, budgets } = await site.ask("keys");
  if (!isCurrent()) return;
  const said = h("div", { role: "status" });
  async function change(body, form) {
    try {
      const made = await site.ask("keys", { body });
      await site.pages.keys(main, query, isCurrent);
      if (made.key) main.querySelector("[role=status]").replaceChildren(h("div", { class: "waiting" }, h("strong", {}, `The key ${made.name}, shown this once`), copyable(h("pre", {}, made.key), made.key),
        made.old_until ? h("p", {}, `The old key is valid until ${when(made.old_until)} UTC.`) : null));
      else main.querySelector("[role=status]").replaceChildren(h("p", { class: "chip good" }, `${made.name}: done`));
    } catch (error) { (form?.querySelector(".note") || said).textContent = visible(error.message); }
  }
  const inputs = (key) => Object.entries(FIELDS).map(([name, [words, kind]]) => {
    const value = key ? (name === "models" ? key.models.join(", ") : key[name] ?? "") : "";
    return h("label", {}, words, Array.isArray(kind) ? h("select", { name }, kind.map((each) => h("option", { selected: each === value }, each)))
      : h("input", { name, type: kind, min: kind === "number" ? "1" : null, ...(name.startsWith("budget") ? AMOUNT : {}), value: String(value), autocomplete: "off" }));
  });
  const onSubmit = (form, body) => form.addEventListener("submit", (event) => { event.preventDefault(); change(body(form.elements), form); });
  function form(key) {
    const element = h("form", { class: "grid" }, key ? null : h("label", {}, "Name", h("input", { name: "name", required: true, autocomplete: "off" })), inputs(key),
      h("p", { class: "note", role: "alert" }), h("div", { class: "row" }, h("button", { class: "primary", type: "submit" }, key ? "Save limits" : "Create"),
        key ? [h("button", { type: "button", class: "button", on: () => change({ action: "rotate", name: key.id, overlap_hours: Number(element.elements.overlap.value) }, element) }, "Rotate"),
          h("label", { class: "inline" }, "old key valid for", h("input", { name: "overlap", type: "number", min: "0", value: "24" }), "hours"),
          h("button", { type: "button", class: "button", on: () => change(key.blocked ? { action: "change", name: key.id, expires: null } : { action: "block", name: key.id }, element) }, key.blocked ? "Unblock" : "Block"),
          h("button", { type: "button", class: "button danger", on: (event) => { if (event.target.dataset.sure) change({ action: "revoke", name: key.id }, element); else { event.target.dataset.sure = 1; event.target.textContent = "Revoke for good?"; } } }, "Revoke")] : null));
    onSubmit(element, ({ name }) => ({ action: key ? "change" : "new", name: key ? key.id : name.value.trim(), ...readFields(element, key) }));
    return element;
  }
  const teamForm = h("form", { class: "grid" }, h("label", {}, "Team", h("input", { name: "name", required: true, list: "teams", autocomplete: "off" })), h("datalist", { id: "teams" }, teams.map((each) => h("option", { value: each.id }))),
    h("label", {}, "Budget a month, USD; empty for none", h("input", { name: "budget", ...AMOUNT, autocomplete: "off" })), h("p", { class: "note", role: "alert" }), h("div", { class: "row" }, h("button", { class: "primary", type: "submit" }, "Save team")));
  onSubmit(teamForm, ({ name, budget }) => ({ action: "team", name: name.value.trim(), budget_usd_month: budget.value.trim() || null }));
  const budgetForm = h("form", { class: "grid" },
    h("label", {}, "Account", h("input", { name: "account", required: true, placeholder: "a key, or user:NAME, team:NAME, tag:NAME", autocomplete: "off" })),
    h("label", {}, "Period", h("select", { name: "period" }, Object.entries(PERIODS).map(([each, words]) => h("option", { value: each }, words)))),
    h("label", {}, "Amount, USD; empty to remove the budget", h("input", { name: "usd", ...AMOUNT, autocomplete: "off" })), h("p", { class: "note", role: "alert" }), h("div", { class: "row" }, h("button", { class: "primary", type: "submit" }, "Save budget")));
  onSubmit(budgetForm, ({ account, period, usd }) => ({ action: "budget", name: `${account.value.trim()}:${period.value}`, usd: usd.value.trim() || null }));
  const reset = (each) => h("button", { type: "button", class: "button", "aria-label": `Reset the budget of ${each.account}, ${PERIODS[each.period]}`, on: () => change({ action: "reset", name: `${each.account}:${each.period}` }) }, "Reset");
  const left = (each) => (Number(each.left) ? money(each.left) : h("span", { class: "chip bad" }, "exhausted"));
  const limits = (key) => [key.budget_usd && `${money(key.budget_usd)} in all`, key.budget_usd_month && `${money(key.budget_usd_month)} a month`, key.requests_per_minute && `${number(key.requests_per_minute)} requests/min`,
    key.tokens_per_minute && `${number(key.tokens_per_minute)} tokens/min`, key.max_concurrency && `${key.max_concurrency} at a time`, key.team && `team ${key.team}`].filter(Boolean).join(", ");
  main.replaceChildren(h("div", { class: "sheet" }, h("header", { class: "bar" }, h("h1", {}, "Keys")), said,
    h("details", { class: "proposal new" }, h("summary", {}, h("strong", {}, "New key")), form(null)),
    h("div", { class: "stack" }, keys.map((key) => h("details", { class: "proposal" }, h("summary", {}, h("strong", {}, key.id), h("span", { class: "gist" }, `${key.models.join(", ").replace(/^\*$/, "all models")}${limits(key) ? ` · ${limits(key)}` : ""}`),
      key.blocked ? h("span", { class: "chip bad" }, "blocked") : key.exhausted.length ? h("span", { class: "chip bad", title: key.exhausted.join(", ") }, "over budget") : key.old_until && new Date(key.old_until) > new Date() ? h("span", { class: "chip wait" }, "two keys valid") : h("span", { class: "chip good" }, "valid")), form(key)))),
    h("h2", {}, "Budgets"), table("Budgets", ["Account", "Period", { n: "Budget" }, { n: "Left" }, "Ends (UTC)", ""], budgets.map((each) => [each.account, PERIODS[each.period], { n: money(each.limit) }, { n: left(each) }, each.ends ? when(Date.parse(each.ends)) : "never", reset(each)]), "No budgets."),
    h("details", { class: "proposal new" }, h("summary", {}, h("strong", {}, "New or changed budget")), budgetForm),
    h("h2", {}, "Teams"), table("Teams", ["Team", { n: "Budget a month" }], teams.map((each) => [each.id, { n: each.budget_usd_month ? money(each.budget_usd_month) : "none" }]), "No teams."),
    h("details", { class: "proposal new" }, h("summary", {}, h("strong", {}, "New or changed team")), teamForm),
    h("h2", {}, "Changes"), table("Changes", ["Time (UTC)", "By", "Action", "Key", "Change"], audit.map((each) => [when(each.at), each.actor, each.action, each.subject, h("code", {}, JSON.stringify(each.detail))]))));
};
