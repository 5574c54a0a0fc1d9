"use strict";
// The playground: one or two conversations, what is sent on each wire, plans, and the same call as code.
// A tool call that a model proposes is shown and never executed; the user may type its result.

const VIEWS = { talk: "Conversation", sent: "What is sent", plan: "Plan", copy: "Copy as code" };
const NOT_RUN = "Not executed: the user has only looked at this proposal.";
const play = { view: "talk", panes: [newPane(0)], files: [], fields: {}, timer: 0 };

function newPane(at) { return { at, model: "", messages: [], conversation: "", control: null, log: h("div", { class: "log", role: "log", "aria-live": "polite", tabindex: "0", "aria-label": `Conversation ${at + 1}` }) }; }
const pick = (selector) => $("main").querySelector(selector);

// --- the request of the page ---------------------------------------------------------------------

function parseJson(name, words, needed) {
  const text = (play.fields[name] || "").trim();
  if (!text) return null;
  let value;
  try { value = JSON.parse(text); } catch (error) { throw new Error(`${words}: ${error.message}`); }
  if (!needed(value)) throw new Error(`${words}: must be ${name === "tools" ? "a list of tools" : "an object"}`);
  return value;
}

function readSettings() {
  const config = {};
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) if (play.fields[name]) config[name] = Number(play.fields[name]);
  if (play.fields.reasoning) config.reasoning = play.fields.reasoning;
  const isObject = (value) => value && typeof value === "object" && !Array.isArray(value);
  return { tools: parseJson("tools", "Tools", Array.isArray) || [], config, response_schema: parseJson("schema", "Schema", isObject) };
}

function makeQuestion(pane, draft) {
  const system = (play.fields.system || "").trim();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...pane.messages, ...(draft ? [...closeCalls(pane), draft] : [])];
  return { ...readSettings(), messages };
}

function readDraft() {
  const text = (play.fields.prompt || "").trim();
  if (!text && !play.files.length) return null;
  return { role: "user", content: play.files.length ? [...(text ? [{ type: "text", text }] : []), ...play.files.map(({ block }) => block)] : text };
}

function openCalls(pane) {
  const last = pane.messages.findLast((each) => each.role === "assistant");
  const done = new Set(pane.messages.filter((each) => each.role === "tool").map((each) => each.tool_call_id));
  return (last?.content || []).filter((each) => each.type === "tool_call" && !done.has(each.id));
}
const closeCalls = (pane) => openCalls(pane).map((call) => ({ role: "tool", tool_call_id: call.id, content: NOT_RUN, is_error: true }));

async function attach(files) {
  for (const file of files) {
    const url = await new Promise((done, failed) => { const reader = new FileReader(); reader.onload = () => done(reader.result); reader.onerror = () => failed(reader.error); reader.readAsDataURL(file); });
    const source = { type: "inline", base64_data: url.slice(url.indexOf(",") + 1) };
    const isImage = file.type.startsWith("image/");
    play.files.push({ name: file.name, url: isImage ? url : null, block: isImage ? { type: "image", source, media_type: file.type } : { type: "document", source, media_type: file.type, name: file.name } });
  }
  showFiles();
}

function showFiles() {
  pick(".files").replaceChildren(...play.files.map((file, at) => h("span", { class: "chip" }, file.name, " ",
    h("button", { class: "quiet", type: "button", "aria-label": `Remove ${file.name}`, on: () => { play.files.splice(at, 1); showFiles(); } }, "✕"))));
  refresh();
}

// --- calling the models --------------------------------------------------------------------------

async function submit(event) {
  event?.preventDefault();
  const draft = readDraft();
  if (!draft || play.panes.some((pane) => pane.control)) return;
  try { readSettings(); } catch (error) { return complain(error); }
  complain(null);
  show("talk");
  const shown = play.files;
  Object.assign(play, { files: [] });
  play.fields.prompt = pick("#prompt").value = "";
  showFiles();
  await Promise.all(play.panes.map((pane) => {
    pane.messages.push(...closeCalls(pane), draft);
    pane.log.append(h("div", { class: "user" }, h("div", { class: "card" }, h("div", { class: "said" }, typeof draft.content === "string" ? draft.content : draft.content.filter((each) => each.text).map((each) => each.text).join("\n")),
      shown.map((file) => (file.url ? h("img", { src: file.url, alt: file.name }) : h("span", { class: "chip" }, file.name))))));
    return call(pane);
  }));
}

// Read the reply as lines of JSON: the events of the library, then the time and the cost.
async function call(pane) {
  const thinking = h("pre"), text = h("div", { class: "said" }), facts = h("p", { class: "facts" });
  const fold = h("details", { hidden: true }, h("summary", {}, "Thinking"), thinking);
  const stop = h("button", { class: "button", type: "button", on: () => pane.control?.abort() }, "Stop");
  const card = h("div", { class: "card reply" }, h("p", { class: "who" }, pane.model), fold, text, facts, stop);
  pane.log.append(card);
  pane.control = new AbortController();
  facts.textContent = "Waiting…";
  busy();
  let complete = null, end = null, error = null;
  const draw = drawWhileStreaming(text, () => follow(pane));
  try {
    const key = sessionStorage.getItem("call-key");
    const answer = await site.send("chat", { body: { ...makeQuestion(pane), model: pane.model, conversation: pane.conversation }, signal: pane.control.signal, more: key && site.facts.needs_key ? { "X-Call-Key": key } : {} });
    for await (const line of readLines(answer.body)) {
      const event = JSON.parse(line);
      if (event.type === "text.delta") { facts.textContent = ""; draw(event.text); }
      else if (event.type === "thinking.delta") { fold.hidden = false; facts.textContent = ""; thinking.append(visible(event.text)); }
      else if (event.type === "message.complete") complete = event;
      else if (event.type === "end") end = event;
      follow(pane);
    }
  } catch (failure) { error = failure; }
  pane.control = null;
  stop.remove();
  finish(pane, { card, text, partial: draw(""), facts, complete, end, error });
  busy();
}

// Draw the Markdown of a growing text: once a frame, and less often if drawing takes long. Returns a function that
// adds to the text and returns all of it.
function drawWhileStreaming(place, onDrawn) {
  let said = "", waits = false, restUntil = 0;
  function draw(now) {
    if (now < restUntil) return requestAnimationFrame(draw);
    waits = false;
    if (!place.isConnected) return;
    const began = performance.now();
    place.replaceChildren(markdown(said));
    onDrawn();
    restUntil = performance.now() + 10 * (performance.now() - began);
  }
  return (more) => {
    said += more;
    if (more && !waits) { waits = true; requestAnimationFrame(draw); }
    return said;
  };
}

async function* readLines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines.filter(Boolean);
  }
}

const follow = (pane) => { if (pane.log.scrollHeight - pane.log.scrollTop - pane.log.clientHeight < 160) pane.log.scrollTop = pane.log.scrollHeight; };

function finish(pane, { card, text, partial, facts, complete, end, error }) {
  if (end?.conversation) pane.conversation = end.conversation;
  if (complete && !end?.error) {
    pane.messages.push({ role: "assistant", content: complete.final_content });
    const said = complete.final_content.filter((each) => each.type === "text").map((each) => each.text).join("");
    text.replaceWith(markdown(said));
    for (const each of complete.final_content.filter((block) => block.type === "tool_call")) card.insertBefore(proposal(pane, each), facts);
  } else if (partial) pane.messages.push({ role: "assistant", content: [{ type: "text", text: partial }] });
  else while (pane.messages.length && pane.messages.at(-1).role !== "assistant") pane.messages.pop();
  facts.replaceChildren(...describeEnd(complete, end));
  const failure = end?.error || (error && (error.name === "AbortError" ? "Stopped." : error.message));
  if (failure) card.append(h("p", { class: "note", role: "alert" }, failure));
  follow(pane);
}

function describeEnd(complete, end) {
  if (!end) return [];
  const { usage } = end, count = (value) => (value === null || value === undefined ? "?" : number(value));
  const cost = end.cost_usd === null ? `cost unknown, because ${end.cost_unknown}` : Number(end.cost_usd) ? money(end.cost_usd) : "free";
  return [h("span", {}, end.served_by), h("span", {}, `${count(usage.input_tokens)} tokens in, ${count(usage.output_tokens)} out${usage.estimated ? " (estimated)" : ""}`), h("span", { class: "cost" }, cost),
    end.first_ms === null ? null : h("span", {}, `first token after ${duration(end.first_ms)}, all after ${duration(end.latency_ms)}`),
    complete && complete.finish_reason !== "stop" ? h("span", {}, complete.finish_reason) : null,
    ...(complete?.warnings || []).map((each) => h("span", { class: "lost", title: each.detail }, `${each.code} ${each.path}`)),
    site.facts.pages.includes("traces") && end.conversation ? h("a", { href: `ui/traces/#${encodeURIComponent(end.conversation)}` }, "Open the trace") : null].filter(Boolean);
}

function proposal(pane, block) {
  const input = h("textarea", { rows: 3, "aria-label": `Result of ${block.name}`, placeholder: "Run it yourself, and type what came out" });
  const button = h("button", { class: "primary", type: "submit" }, "Send the result");
  const form = h("form", { class: "decide" }, h("label", {}, "Result", input), h("div", { class: "row" }, button));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (pane.control || !openCalls(pane).some((each) => each.id === block.id)) return;
    pane.messages.push({ role: "tool", tool_call_id: block.id, content: input.value });
    form.replaceWith(h("div", { class: "parts" }, h("div", {}, h("span", { class: "what" }, "Your result"), h("pre", {}, input.value))));
    if (!openCalls(pane).length) call(pane);
  });
  return h("details", { class: "proposal", open: true }, h("summary", {}, h("strong", {}, block.name), h("span", { class: "gist" }), h("span", { class: "chip wait" }, "proposed, not executed")),
    h("div", { class: "parts" }, h("div", {}, h("span", { class: "what" }, "Input"), showJson(block.arguments ?? {}))), form);
}

function busy() {
  const running = play.panes.some((pane) => pane.control);
  if (pick("#send")) pick("#send").disabled = running;
  if (!running) refresh();
}

// --- what is sent, plan, copy --------------------------------------------------------------------

function refresh() { clearTimeout(play.timer); play.timer = setTimeout(() => showView().catch(complain), 250); }

async function showView() {
  const place = pick(".view");
  if (!place) return;
  pick(".panes").hidden = play.view !== "talk";
  place.hidden = play.view === "talk";
  if (play.view === "talk") return;
  const [one, other] = play.panes;
  const question = makeQuestion(one, readDraft());
  const others = site.facts.models.filter((name) => name !== one.model);
  const target = other?.model || play.fields.target || others[0] || one.model;
  const models = play.view === "plan" ? [target] : play.panes.map((pane) => pane.model);
  complain(null);
  if (!question.messages.length) { place.replaceChildren(h("p", { class: "soft" }, "Write a message first: then this shows the request before it is sent.")); return; }
  const wanted = play.view;
  const { sent } = await site.ask("preview", { query: models.map((name) => ["model", name]), body: question });
  if (wanted !== play.view) return;
  place.replaceChildren(...{ sent: () => showSent(question, sent), plan: () => showPlan(sent[0], target, Boolean(other)), copy: () => showCopy(question, sent[0]) }[wanted]());
}

// The page's own request with the notes of all wires where they apply.
function showTree(question, sent) {
  const marks = new Map();
  for (const each of sent) for (const note of each.notes) marks.set(note.path, [...(marks.get(note.path) || []), h("span", { class: note.loss ? "lost" : "changed", title: note.detail }, `${note.loss ? "✕" : "~"} ${each.wire}`)]);
  const lines = [];
  const add = (depth, key, path, text) => lines.push(h("div", {}, "  ".repeat(depth) + key + text, marks.get(path)?.splice(0) || null));
  (function walk(value, path, key, depth) {
    if (value === null || typeof value !== "object") return add(depth, key, path, shorten(value));
    const items = Array.isArray(value) ? value.map((each, at) => [`${path}[${at}]`, "", each]) : Object.entries(value).filter(([, each]) => each !== null && !(typeof each === "object" && !Object.keys(each).length)).map(([name, each]) => [path ? `${path}.${name}` : name, `${name}: `, each]);
    add(depth, key, path, Array.isArray(value) ? "[" : "{");
    for (const [inner, name, each] of items) walk(each, inner, name, depth + 1);
    add(depth, "", "", Array.isArray(value) ? "]" : "}");
  })(question, "", "", 0);
  const rest = [...marks].filter(([, found]) => found.length).map(([path, found]) => h("div", {}, `${path} `, found));
  return h("pre", { class: "tree", tabindex: "0" }, lines, rest);
}

const shorten = (value) => (typeof value === "string" && value.length > 300 ? JSON.stringify(value.slice(0, 120)) + ` … (${number(value.length - 120)} characters more)` : JSON.stringify(value));

function showSent(question, sent) {
  const wire = (each) => {
    const lost = each.notes.filter((note) => note.loss).length, body = each.body ? json(JSON.parse(each.body, (_, value) => (typeof value === "string" && value.length > 2000 ? value.slice(0, 200) + `… (${number(value.length - 200)} characters more)` : value))) : "";
    return h("section", { class: "wire card", "aria-label": each.wire || each.served_by }, h("h2", {}, each.wire || (each.body ? each.served_by : "no wire"), " ", each.model ? h("span", { class: "chip" }, each.model) : null),
      h("p", { class: "url" }, each.model ? each.url : "as it would be there"), each.refused ? h("p", { class: "note" }, `Refused, nothing is sent: ${each.refused}`) : null,
      h("p", { class: "chips" }, each.refused || !each.body ? null : h("span", { class: `chip ${lost ? "bad" : "good"}` }, lost ? `${lost} lost` : "nothing lost")),
      each.notes.length ? h("ul", { class: "notes" }, each.notes.map((note) => h("li", { class: note.loss ? "lost" : "changed" }, h("code", {}, note.path), ` ${note.outcome}: ${note.detail}`))) : null,
      each.body ? copyable(colourJson(body), each.body) : each.refused ? null : h("p", { class: "soft" }, "This model is not called over HTTP."));
  };
  return [h("div", { class: "wires" }, h("section", { class: "wire card", "aria-label": "Your request" }, h("h2", {}, "Your request"),
    h("p", { class: "soft" }, "✕ marks what a wire cannot carry, ~ what it carries in another form."), showTree(question, sent)), sent.map(wire))];
}

function showPlan(entry, target, fixed) {
  const plan = entry.plan, choice = h("select", { "aria-label": "Change to" }, site.facts.models.map((name) => h("option", { selected: name === target }, name)));
  choice.addEventListener("change", () => { play.fields.target = choice.value; refresh(); });
  const fits = { true: "It fits the context window.", false: "It does not fit the context window.", null: "The context window is not known." }[String(plan.fits)];
  const lost = plan.items.filter((item) => item.loss).length;
  return [h("section", { class: "card" }, h("h2", {}, "If this conversation goes on with ", fixed ? h("code", {}, target) : choice),
    h("p", { class: "chips" }, plan.refused ? h("span", { class: "chip bad" }, "refused") : h("span", { class: `chip ${lost ? "bad" : "good"}` }, lost ? `${lost} lost` : "nothing lost")),
    h("p", { class: "soft" }, plan.refused || `About ${number(plan.estimated_tokens)} tokens. ${fits}`),
    table("Plan", ["Where", "What", "Outcome", "Reason"], plan.items.map((item) => [h("code", {}, item.path), item.kind, h("span", { class: item.loss ? "lost" : item.outcome === "kept" ? "" : "changed" }, item.outcome), item.reason || item.rule]), "Nothing would be sent."))];
}

function showCopy(question, entry) {
  const copies = { Python: writePython(question, entry), ...(entry.body ? { curl: writeCurl(entry) } : {}), "Command line": writeCommand(question, entry) };
  return Object.entries(copies).map(([words, text]) => h("section", { class: "card", "aria-label": words }, h("h2", {}, words),
    copyable(h("pre", { tabindex: "0" }, text.length > 20_000 ? text.slice(0, 20_000) + "…" : text), text)));
}

const PYTHON = { true: "True", false: "False", null: "None" };
function python(value, indent) { // JSON as a Python literal
  const inner = `${indent}    `;
  if (value === null || typeof value === "boolean") return PYTHON[value];
  if (typeof value !== "object") return JSON.stringify(value);
  const items = Array.isArray(value) ? value.map((each) => python(each, inner)) : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each, inner)}`);
  const [first, last] = Array.isArray(value) ? "[]" : "{}";
  return items.join().length < 70 ? first + items.join(", ") + last : `${first}\n${items.map((each) => `${inner}${each},\n`).join("")}${indent}${last}`;
}

function writePython(question, entry) {
  const given = { tools: question.tools.length ? question.tools : null, response_schema: question.response_schema, ...question.config };
  const settings = Object.entries(given).filter(([, value]) => value !== null).map(([name, value]) => `            ${name}=${python(value, "            ")},\n`);
  return `import asyncio\n\nfrom dragoman import connect\n\n\nasync def main():\n    async with connect(${JSON.stringify(entry.model)}) as model:\n        reply = await model.complete(\n` +
    `            ${python(question.messages, "            ")},\n${settings.join("")}        )\n        print(reply.text)\n\n\nasyncio.run(main())\n`;
}

const quote = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\"'\"'")}'`);
function writeCurl(entry) { // a header with the key is in double quotes, so that the shell inserts the key
  const headers = Object.entries(entry.headers).map(([name, value]) => (value.includes("$API_KEY") ? `-H "${name}: ${value}"` : `-H ${quote(`${name}: ${value}`)}`));
  return [`curl -N ${quote(entry.url)}`, ...headers, `--data-binary ${quote(entry.body)}`].join(" \\\n  ") + "\n";
}

function writeCommand({ messages, tools, config, response_schema: schema }, entry) {
  const text = ({ content }) => (typeof content === "string" ? content : content.filter((each) => each.type === "text").map((each) => each.text).join("\n"));
  const files = { "tool-schema": tools.length ? tools : null, schema }, last = messages.at(-1);
  const lines = Object.entries(files).filter(([, value]) => value).map(([name, value]) => `cat > ${name}.json <<'JSON'\n${json(value)}\nJSON\n`);
  if (messages.filter((each) => each.role === "user").length > 1) lines.push("# the last message alone; dragoman chat keeps a conversation\n");
  const words = ["dragoman", "ask", "-m", entry.model, ...messages.filter((each) => each.role === "system").flatMap((each) => ["-s", each.content]),
    ...Object.entries(config).flatMap(([name, value]) => ["-o", name, String(value)]), ...Object.entries(files).filter(([, value]) => value).flatMap(([name]) => [`--${name}`, `${name}.json`]),
    ...[last.content].flat().filter((each) => each.type === "image" || each.type === "document").flatMap((each) => ["-a", each.name || "FILE"]), text(last)];
  return lines.join("") + words.map(quote).join(" ") + "\n";
}

// --- the page ------------------------------------------------------------------------------------

function show(view) {
  play.view = view;
  for (const button of $("main").querySelectorAll(".filters button")) button.setAttribute("aria-pressed", String(button.dataset.name === view));
  refresh();
}

function drawPanes() {
  pick(".panes").replaceChildren(...play.panes.map((pane) => h("section", { class: "pane", "aria-label": pane.model }, pane.log)));
  pick(".panes").classList.toggle("two", play.panes.length > 1);
}

function field(name, words, element) {
  element.value = play.fields[name] ?? "";
  element.addEventListener("input", () => { play.fields[name] = element.value; refresh(); });
  return h("label", {}, words, element);
}

// --- keys of vendors: the form of `dragoman ui` ----------------------------------------------------

const PLACES = { keyring: "the system's keyring", file: "a file that only you may read" };

function addVendor(models) {
  const inside = h("div");
  const onlyLocal = models.every((name) => name === "local");
  const fold = h("details", { class: "settings vendors", open: onlyLocal }, h("summary", {}, onlyLocal ? "Only the embedded model is here. Add a vendor" : "Add a vendor"), inside);
  const load = () => site.ask("vendors").then((known) => inside.replaceChildren(...vendorForm(known))).catch(complain);
  fold.addEventListener("toggle", () => { if (fold.open && !inside.childNodes.length) load(); });
  if (onlyLocal) load();
  return fold;
}

function vendorForm({ vendors, place }) {
  const select = h("select", { name: "vendor" }, vendors.map((each) => h("option", { value: each.id }, each.source ? `${each.name} (has a key)` : each.name)));
  const key = h("input", { type: "password", name: "vendor-key", required: true, autocomplete: "new-password", spellcheck: "false" });
  const hint = h("span"), said = h("p", { class: "note", role: "alert" });
  const intro = h("span", {}, `${vendors.length} vendors are known. Your programs find a stored key too; `, h("code", {}, "dragoman keys rm NAME"), " deletes it.");
  const form = h("form", { class: "grid" }, h("p", { class: "row soft" }, intro), h("input", { autocomplete: "username", value: "vendor", hidden: true }), h("label", {}, "Vendor", select), h("label", {}, "API key", key), h("p", { class: "row soft" }, hint), said,
    h("div", { class: "row" }, h("button", { class: "primary", type: "submit" }, "Store the key")));
  const explain = () => {
    const { id, name, variable, source } = vendors.find((each) => each.id === select.value);
    hint.replaceChildren(source === "environment" ? `The key of ${name} is in the environment variable ${variable}, which overrides a stored one.` : `The key goes to ${PLACES[place]}, as with `,
      ...(source === "environment" ? [] : [h("code", {}, `dragoman keys set ${id}`), "; the page does not keep it."]));
  };
  select.addEventListener("change", explain);
  explain();
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const vendor = select.value;
    try {
      const stored = await site.ask("vendors", { body: { vendor, key: key.value } });
      key.value = "";
      await site.renew();
      if (stored.models.length) play.panes[0].model = stored.models[0];
      await site.pages.playground($("main"));
      const done = pick("#done");
      done.hidden = false;
      done.textContent = `${stored.variable} is stored in ${PLACES[stored.place]}; ${plural(stored.models.length, "model")} added${stored.overridden ? `. The environment variable ${stored.variable} overrides it` : ""}.`;
    } catch (error) { said.textContent = visible(error.message); }
  });
  return [form];
}

site.pages.playground = async (main) => {
  const { models, needs_key: needsKey } = site.facts;
  play.panes[0].model ||= models[0];
  const choose = (at, words) => {
    const select = h("select", { id: `model-${at}` }, at ? h("option", { value: "" }, "no other model") : null, models.map((name) => h("option", { value: name }, name)));
    select.value = play.panes[at]?.model || "";
    select.addEventListener("change", () => {
      if (!at) play.panes[0].model = select.value;
      else if (!select.value) play.panes = play.panes.slice(0, 1);
      else { play.panes[1] ||= newPane(1); play.panes[1].model = select.value; }
      drawPanes();
      refresh();
    });
    return h("label", {}, words, select);
  };
  const numeric = (name, words, facts) => field(name, words, h("input", { type: "number", ...facts }));
  const prompt = h("textarea", { id: "prompt", rows: 2, "aria-label": "Message", placeholder: "Write a message. Enter sends it, Shift-Enter begins a line." });
  prompt.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event); });
  const file = h("input", { type: "file", multiple: true, accept: "image/*,application/pdf", "aria-label": "Attach an image or a PDF" });
  file.addEventListener("change", () => attach(file.files).then(() => { file.value = ""; }).catch(complain));
  const callKey = h("input", { type: "password", autocomplete: "new-password", placeholder: "dg-…" });
  callKey.value = sessionStorage.getItem("call-key") || "";
  callKey.addEventListener("input", () => sessionStorage.setItem("call-key", callKey.value.trim()));
  const composer = h("form", { class: "composer" }, h("div", { class: "files chips" }), field("prompt", null, prompt), h("div", { class: "row" }, h("label", { class: "button attach" }, "Attach", file), h("button", { id: "send", class: "primary", type: "submit" }, "Send")));
  composer.addEventListener("submit", submit);
  main.replaceChildren(
    h("header", { class: "bar" }, h("h1", {}, "Playground"), h("div", { class: "filters", role: "group", "aria-label": "Show" }, choices(VIEWS, play.view, show))),
    h("div", { class: "chosen" }, choose(0, "Model"), choose(1, "Compare with"), needsKey ? h("form", {}, h("input", { autocomplete: "username", value: "key", hidden: true }), h("label", {}, "Gateway key that pays", callKey)) : null,
      h("button", { class: "button", type: "button", on: () => { play.panes.forEach((pane) => { pane.control?.abort(); Object.assign(pane, { messages: [], conversation: "" }); pane.log.replaceChildren(); }); refresh(); } }, "New conversation")),
    ...(site.facts.stores_keys ? [addVendor(models)] : []),
    h("details", { class: "settings" }, h("summary", {}, "System prompt, settings, tools, schema"), h("div", { class: "grid" },
      field("system", "System prompt", h("textarea", { rows: 2 })), numeric("temperature", "Temperature", { min: 0, max: 2, step: 0.1 }), numeric("max_tokens", "Max tokens", { min: 1 }), numeric("top_p", "Top p", { min: 0, max: 1, step: 0.05 }), numeric("seed", "Seed", {}),
      field("reasoning", "Reasoning", h("select", {}, ["", "off", "minimal", "low", "medium", "high"].map((name) => h("option", { value: name }, name || "by default")))),
      field("tools", "Tools (JSON list); calls are shown, never executed", h("textarea", { rows: 4, spellcheck: "false", placeholder: '[{"name": "weather", "description": "…", "parameters": {"type": "object", "properties": {}}}]' })),
      field("schema", "Schema of the answer (JSON Schema)", h("textarea", { rows: 4, spellcheck: "false", placeholder: '{"type": "object", "properties": {}}' })))),
    h("p", { id: "done", class: "chip good", role: "status", hidden: true }), h("p", { id: "trouble", class: "trouble", role: "alert", hidden: true }), h("div", { class: "panes" }), h("div", { class: "view", hidden: true }), composer);
  drawPanes();
  showFiles();
  prompt.focus();
};
