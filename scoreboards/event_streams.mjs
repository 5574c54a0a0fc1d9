// Reads the streams of a file with eventsource-parser, and writes their events to another file.
import fs from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [home, given, found] = process.argv.slice(2);
const require = createRequire(home + "/package.json");
const { createParser } = await import(pathToFileURL(require.resolve("eventsource-parser")));
const read = (text) => {
  const events = [];
  const parser = createParser({ onEvent: (event) => events.push([event.event ?? "message", event.data]) });
  parser.feed(text);
  return events;
};
fs.writeFileSync(found, JSON.stringify(JSON.parse(fs.readFileSync(given)).map(read)));
