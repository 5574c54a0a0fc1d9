"use strict";
// The frame of the pages: the key, the navigation, and requests to the server. The trace viewer uses it too.
// The key is kept for this tab only and sent as a header by this script, so that no other site can use it.

const site = (() => {
  const inTraces = location.pathname.endsWith("/ui/traces/");
  const root = inTraces ? "../../" : "";
  const pages = {}; // by name: a function of the main element and the query of the address
  let facts = { pages: [], models: [] };
  let turn = 0;

  const found = location.hash.match(/^#key=([\w-]+)$/);
  if (found) {
    sessionStorage.setItem("key", found[1]);
    history.replaceState(null, "", location.pathname + "#playground");
  }
  globalThis.siteHeaders = () => {
    const key = sessionStorage.getItem("key");
    return key ? { Authorization: `Bearer ${key}` } : {};
  };

  function send(name, { query, body, signal, more } = {}) {
    const posted = body === undefined ? {} : { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...more } };
    return request(`${root}ui/api/${name}${query ? `?${new URLSearchParams(query)}` : ""}`, { ...posted, signal });
  }
  const ask = async (name, options) => (await send(name, options)).json();

  // --- the navigation and the pages

  const TITLES = { overview: "Overview", playground: "Playground", models: "Models", keys: "Keys", questions: "Questions", traces: "Traces", clients: "Clients", me: "My access" };
  function draw(current) {
    const links = facts.pages.map((name, at) => h("a", {
      href: name === "traces" ? `${root}ui/traces/` : `${root || "./"}#${name}`, "aria-current": name === current ? "page" : null, title: `${TITLES[name]} (${at + 1})`,
    }, TITLES[name]));
    document.querySelector("aside > nav.pages")?.remove();
    document.querySelector("aside > header").after(h("nav", { class: "pages", "aria-label": "Pages" }, links));
  }

  async function show() {
    const [name, query] = location.hash.slice(1).split("?");
    const wanted = pages[name] ? name : facts.pages[0];
    const mine = ++turn;
    draw(wanted === "calls" ? "overview" : wanted);
    document.title = `${TITLES[wanted] || "Calls"} · Dragoman`;
    const main = $("main");
    main.className = wanted;
    try { await pages[wanted](main, new URLSearchParams(query), () => mine === turn); }
    catch (error) { if (mine === turn) fail(error); }
  }

  function fail(error) {
    if (error.status === 401) return signIn(error);
    $("main").replaceChildren(h("p", { class: "trouble", role: "alert" }, error.message));
  }

  function signIn(error) {
    const input = h("input", { type: "password", id: "key", autocomplete: "current-password", required: true });
    const form = h("form", { class: "sheet sign-in" }, h("h1", {}, "Sign in"),
      facts.log_in ? h("a", { class: "button", href: `${root}ui/login` }, `Log in with ${facts.log_in}`) : null,
      h("p", {}, facts.log_in ? "Or use the admin key of this gateway. It stays in this tab until you close it." : "These pages are for the admin key of this gateway. It stays in this tab until you close it."),
      error ? h("p", { class: "note", role: "alert" }, error.message) : null,
      h("input", { type: "text", value: "admin", autocomplete: "username", hidden: true }), h("label", {}, "Admin key", input), h("button", { class: "primary", type: "submit" }, "Sign in"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      sessionStorage.setItem("key", input.value.trim());
      location.reload();
    });
    $("main").replaceChildren(form);
    input.focus();
  }

  async function start() {
    try { facts = await ask("state"); } catch (error) {
      if (error.status !== 401 || !sessionStorage.getItem("key")) return fail(error);
      sessionStorage.removeItem("key"); // without the wrong key, the state says how people sign in
      facts = await ask("state").catch(() => facts);
      return signIn(error);
    }
    if (facts.sign_in) return signIn();
    if (facts.logged_in) document.querySelector("aside > header").append(h("button", { class: "quiet", type: "button", on: logOut }, "Log out"));
    if (inTraces) return draw("traces");
    $("version").textContent = facts.version;
    addEventListener("hashchange", show);
    await show();
  }

  async function logOut() {
    try { await send("logout", { body: {} }); } catch (error) { if (error.status !== 401) return fail(error); }
    location.href = root || "./";
  }

  // A link cannot send the key, so a script fetches what is saved as a file.
  document.addEventListener("click", async (event) => {
    const link = event.target.closest?.("a[download]");
    if (!link || link.href.startsWith("blob:")) return;
    event.preventDefault();
    const saved = h("a", { download: link.download, href: URL.createObjectURL(await (await request(link.href)).blob()) });
    saved.click();
    setTimeout(() => URL.revokeObjectURL(saved.href), 10_000);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, dialog")) return;
    const link = document.querySelectorAll("nav.pages a")[Number(event.key) - 1];
    if (link) link.click();
    else if (event.key === "t" && !inTraces) switchTheme();
  });
  addEventListener("DOMContentLoaded", start);
  const renew = async () => { facts = await ask("state"); };
  return { ask, send, pages, renew, get facts() { return facts; } };
})();
