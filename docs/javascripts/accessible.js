// The theme makes a navigation landmark of each copy button, and wide tables that scroll but cannot be focused.
const repair = () => {
  document.querySelectorAll("nav.md-code__nav").forEach((nav) => nav.setAttribute("role", "presentation"));
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((wrap) => wrap.setAttribute("tabindex", "0"));
};
new MutationObserver(repair).observe(document.documentElement, { childList: true, subtree: true });
repair();
