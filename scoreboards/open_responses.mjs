// The client of the AI SDK for Open Responses: `node open_responses.mjs FOLDER URL MODEL...`.
// Prints one JSON object: the outcome of each call by "row/model", empty if it succeeded.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, url, ...models] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { generateText, jsonSchema, streamText, tool } = await load("ai");
const { createOpenResponses } = await load("@ai-sdk/open-responses");

const provider = createOpenResponses({ name: "gateway", url: `${url}/v1/responses`, apiKey: "x" });
const weather = tool({
  description: "The weather.",
  inputSchema: jsonSchema({ type: "object", properties: { location: { type: "string" } }, required: ["location"] }),
});
const tools = { get_weather: weather };

function expect(found, wanted) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (one !== other) throw new Error(`found ${one}, wanted ${other}`);
}

async function drain(result) {
  for await (const part of result.fullStream) if (part.type === "error") throw part.error;
  return result;
}

const input = { location: "San Francisco, CA" };
const rows = {
  async text(model) {
    const made = await generateText({ model, prompt: "Hi", maxRetries: 0 });
    expect([made.text, made.finishReason, made.usage.inputTokens > 0], ["Ahoy, Alice.", "stop", true]);
  },
  async stream(model) {
    const made = await drain(streamText({ model, prompt: "Hi", system: "Be brief.", maxRetries: 0 }));
    expect([await made.text, await made.finishReason], ["Ahoy, Alice.", "stop"]);
  },
  async "tool call"(model) {
    const made = await generateText({ model, prompt: "The weather?", tools, maxRetries: 0 });
    expect([made.toolCalls.map((call) => call.input), made.finishReason], [[input], "tool-calls"]);
  },
  async "streamed tool call"(model) {
    const made = await drain(streamText({ model, prompt: "The weather?", tools, maxRetries: 0 }));
    expect([(await made.toolCalls).map((call) => call.input), await made.finishReason], [[input], "tool-calls"]);
  },
};

const found = {};
for (const [row, call] of Object.entries(rows))
  for (const model of models)
    try {
      await call(provider(model));
      found[`${row}/${model}`] = "";
    } catch (error) {
      found[`${row}/${model}`] = String(error.message).slice(0, 300);
    }
console.log(JSON.stringify(found));
process.exit(0);
