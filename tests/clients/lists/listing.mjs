// Tests each feature in a list with a JavaScript client: `node CLIENT_list.mjs FOLDER URL SIDE MODEL`. FOLDER has the
// installed packages. Prints one JSON object: what became of each feature, "yes" or why not.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

export const [folder, url, side, model] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
export const load = (name) => import(pathToFileURL(require.resolve(name)));
export const { z } = await load("zod");
export const River = z.object({ name: z.string(), km: z.number() });
export const City = z.object({ city: z.string() });
export const PNG = "iVBORw0KGgo=";

// Thrown for a feature that the client does not offer on this wire.
export class NotOffered extends Error {}

export function expect(found, wanted) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (one !== other) throw new Error(`found ${one}, wanted ${other}`);
}

// Everything that an error and its causes show.
const show = (error) =>
  error ? `${error.name} ${error.statusCode ?? error.status ?? error.status_code ?? ""} ${error.message} ${error.responseBody ?? ""} ${show(error.cause)}` : "";

// The features that most clients have, from four functions of the client: ask with or without an image, stream the pieces
// of a reply, call a function with the city of a tool call and answer, and answer with an object.
export const makeCases = ({ ask, stream, useTool, structure }) => ({
  async completes() {
    expect(await ask("Hi"), "Hello there");
  },
  async streams() {
    let text = "";
    for await (const piece of stream("Hi")) text += piece;
    expect(text, "Hello there");
  },
  async tools() {
    const places = [];
    expect([await useTool("CALL", (city) => places.push(city)), places], ["It rains.", ["Paris"]]);
  },
  async structured() {
    expect(await structure("RIVER"), { name: "Rhine", km: 1233 });
  },
  async image() {
    expect(await ask("What?", PNG), "Hello there");
  },
  async errors() {
    for (const status of [401, 404, 429]) {
      let shown = "no error";
      await ask(`E${status}`).catch((error) => (shown = show(error)));
      if (!shown.replaceAll(`E${status}`, "").includes(status)) throw new Error(`for ${status}: ${shown}`);
    }
  },
  // Only an aborted reply ends: its first piece is the last one that is sent.
  async abort() {
    const stop = new AbortController();
    try {
      for await (const piece of stream("SLOW", stop.signal)) if (piece) stop.abort();
    } catch (error) {
      if (!stop.signal.aborted) throw error;
    }
    expect([stop.signal.aborted, await ask("Hi")], [true, "Hello there"]);
  },
});

export async function run(cases) {
  process.on("unhandledRejection", console.error); // @google/generative-ai leaves one behind after an abort
  const found = {};
  for (const [name, test] of Object.entries(cases)) {
    const late = new Promise((_, fail) => setTimeout(fail, 180_000, new Error("did not end")));
    found[name] = await Promise.race([test(), late]).then(
      () => "yes",
      (error) => (error instanceof NotOffered ? "–" : `no: ${show(error)}`.slice(0, 600)),
    );
  }
  console.log("\n" + JSON.stringify(found));
  process.exit(0); // idle connections would keep the program alive
}
