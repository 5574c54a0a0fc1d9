// The ranking of the site's search. The theme's worker requires every word of a question and ranks a long reference like
// a guide; this file takes its place, as a worker with the same messages (zensical 0.0: 0 set up, 1 ready, 2 query, 3 result).
// tests/test_search.py runs it in node.

const EMPTY = new Set(("a about all am an and any are as at be by can could do does for from get give has have how i if in into is it its " +
  "just make me much my need of on or our set should show so some tell that the their them there this to up use using want was we what when " +
  "where which why will with without would you your").split(" "));

// Words of questions that pages call otherwise.
const OTHER_WORDS = {
  quota: ["limit"], throttle: ["rate", "limit"], rag: ["retrieval"], sse: ["stream"], bill: ["cost"], cheap: ["cost"], spend: ["cost"],
  picture: ["image"], photo: ["image"], function: ["tool"], certificate: ["tls"], ssl: ["tls"], k8s: ["kubernetes"], debug: ["log"],
  internet: ["network"], mock: ["simulate"], fake: ["simulate"], migrate: ["move"], switch: ["move"], hosted: ["server"], chatbot: ["chat"], vector: ["embed"],
  response: ["reply"], reply: ["response"], backoff: ["retry"], failover: ["fallback"], credential: ["key"], offline: ["network"],
};

// Guides answer questions; the reference and pages for contributors are for those who know what they look for.
const WEIGHTS = [
  [/^concepts\/specification/, 0.08], [/^reference\/(beliefs|cli|python)/, 0.3], [/^scoreboards/, 0.08], [/^decisions\//, 0.3],
  [/^reference\//, 0.5], [/^adding-a|^design|^howto\/codec-by-hand|^concepts\/wires/, 0.4], [/^performance|^supply-chain|^concepts\/pains/, 0.5],
  // a page with the facts of one vendor answers questions about that vendor alone
  [/^providers\/(?!index|openai|anthropic|gemini|azure|bedrock|cohere|openrouter|ollama|vllm|llamacpp|lmstudio)/, 0.2],
  [/^howto\/frameworks/, 0.75], [/^(programs\/)?index/, 0.5], [/^programs\//, 0.9],
];

const stem = (word) => {
  if (word.length < 4) return word;
  let short = word.replace(/ies$/, "y").replace(/(?<=[^s])s$/, "");
  for (const end of ["ation", "ing", "ed", "er"]) {
    if (short.endsWith(end) && short.length - end.length > 2) { short = short.slice(0, -end.length); break; }
  }
  return short.replace(/(.)\1$/, "$1").replace(/e$/, "");
};
const WORD = /[\p{L}\p{N}]+/gu;
const words = (text) => [...text.toLowerCase().matchAll(WORD)].map((found) => stem(found[0]));
const plain = (text) => text.replace(/<[^>]*>/g, " ");
const pageOf = (item) => item.location.split("#")[0];
const weigh = (page) => (WEIGHTS.find(([pattern]) => pattern.test(page)) ?? [null, 1])[1];

const count = (list) => {
  const counts = new Map();
  for (const word of list) counts.set(word, (counts.get(word) ?? 0) + 1);
  return counts;
};

const pairs = (list) => list.slice(1).map((word, at) => `${list[at]} ${word}`);

const buildIndex = (items) => {
  const titles = new Map();
  for (const item of items) if (!item.location.includes("#")) titles.set(item.location, words(plain(item.title)));
  const sections = items.map((item, id) => {
    const body = words(plain(item.text));
    const title = words(plain(item.title));
    return {
      id, page: pageOf(item), title, pageTitle: titles.get(pageOf(item)) ?? [], body: count(body), length: body.length,
      pairs: new Set([...pairs(title), ...pairs(body)]),
    };
  });
  const pagesWith = new Map();
  const pages = new Map();
  for (const each of sections) {
    const found = pages.get(each.page) ?? new Set();
    pages.set(each.page, found);
    for (const word of [...each.body.keys(), ...each.title]) found.add(word);
  }
  // what fifty pages of vendors repeat does not make a word common
  let total = 0;
  for (const [page, found] of pages) {
    total += weigh(page) ** 2;
    for (const word of found) pagesWith.set(word, (pagesWith.get(word) ?? 0) + weigh(page) ** 2);
  }
  const mean = sections.reduce((sum, each) => sum + each.length, 0) / Math.max(1, sections.length);
  return { items, sections, pagesWith, pages: total, mean };
};

const readQuestion = (index, input) => {
  const all = [...input.toLowerCase().matchAll(WORD)].map((found) => found[0]);
  const kept = all.filter((word) => !EMPTY.has(word));
  const terms = (kept.length ? kept : all).map((word) => [stem(word), ...(OTHER_WORDS[word] ?? OTHER_WORDS[stem(word)] ?? []).map(stem)]);
  const last = terms.at(-1);
  // the last word may be unfinished
  if (last && !index.pagesWith.has(last[0]) && last[0].length > 2) {
    last.push(...[...index.pagesWith.keys()].filter((word) => word.startsWith(last[0])).slice(0, 20));
  }
  return terms;
};

const rank = (index, input) => {
  const terms = readQuestion(index, input);
  const rarity = terms.map((forms) => {
    const most = Math.max(...forms.map((form) => index.pagesWith.get(form) ?? 0));
    return most ? Math.log(1 + index.pages / most) : 0;
  });
  const total = rarity.reduce((sum, each) => sum + each, 0);
  const scored = [];
  for (const each of index.sections) {
    let score = 0;
    let covered = 0;
    const isPage = !index.items[each.id].location.includes("#");
    terms.forEach((forms, at) => {
      let best = 0;
      forms.forEach((form, rank) => {
        const times = each.body.get(form) ?? 0;
        let found = (2.2 * times) / (times + 1.2 * (0.4 + (0.6 * each.length) / index.mean));
        if (each.title.includes(form)) found += isPage ? 5 : 3;
        if (each.pageTitle.includes(form)) found += 2.5;
        best = Math.max(best, rank ? 0.7 * found : found);
      });
      if (best) covered += rarity[at];
      score += best * rarity[at];
    });
    // words that stand next to each other in the question and on the page are often one term
    pairs(terms.map((forms) => forms[0])).forEach((pair, at) => {
      if (each.pairs.has(pair)) score += 1.5 * Math.min(rarity[at], rarity[at + 1]) + 1;
    });
    if (score) scored.push({ ...each, score: score * (covered / total) ** 2 * weigh(each.page) });
  }
  scored.sort((one, other) => other.score - one.score || one.id - other.id);
  // the best section of each page first, then the others
  const seen = new Set();
  const first = scored.filter((each) => !seen.has(each.page) && seen.add(each.page));
  const chosen = new Set(first);
  return [...first, ...scored.filter((each) => !chosen.has(each))];
};

const mark = (index, input, text) => {
  const wanted = new Set(readQuestion(index, input).flat());
  const ranges = [];
  for (const found of text.matchAll(/<[^>]*>|[\p{L}\p{N}]+/gu)) {
    if (found[0][0] !== "<" && wanted.has(stem(found[0].toLowerCase()))) ranges.push({ start: found.index, end: found.index + found[0].length, value: found[0].length });
  }
  return ranges;
};

const answer = (index, query) => {
  const { from = 0, size = 10 } = query.page ?? {};
  const found = query.input ? rank(index, query.input) : [];
  const items = found.slice(from, from + size).map((each) => ({
    id: each.id,
    matches: ["title", "text"].map((field) => ({
      id: 0, field, score: each.score, value: { highlight: { ranges: mark(index, query.input, index.items[each.id][field]) } },
    })),
  }));
  const page = (start) => ({ id: 0, size, from: start });
  const pagination = { total: found.length };
  if (from > 0) pagination.prev = page(Math.max(0, from - size));
  if (from + size < found.length) pagination.next = page(from + size);
  return { items, query, aggregations: [], pagination };
};

if (typeof module !== "undefined") {
  module.exports = { answer, buildIndex, rank };
} else if (typeof document === "undefined") {
  let index;
  onmessage = ({ data: { type, data } }) => {
    if (type === 0) { index = buildIndex(data.items); postMessage({ type: 1 }); }
    if (type === 2) postMessage({ type: 3, data: answer(index, data) });
  };
} else {
  const own = document.currentScript.src;
  window.Worker = class extends Worker {
    constructor(url, options) { super(/\/workers\/search\.[^/]*js$/.test(url) ? own : url, options); }
  };
}
