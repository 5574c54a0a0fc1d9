// Start aimock with fixtures: `node aimock.mjs FOLDER FIXTURES`. Prints its URL; ends with its standard input.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder, fixtures] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { LLMock } = await import(pathToFileURL(require.resolve("@copilotkit/aimock")));

const mock = new LLMock({ port: 0, logLevel: "silent" });
for (const { match, response } of JSON.parse(readFileSync(fixtures, "utf8"))) mock.on(match, response);
await mock.start();
console.log(mock.url);
process.stdin.on("end", () => process.exit(0)).resume();
