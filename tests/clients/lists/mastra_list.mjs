// The list of features that are tested with Mastra: with its own client, and with a package of the Vercel AI SDK.
import { City, load, makeCases, model, River, run, side, url } from "./listing.mjs";

const { Agent } = await load("@mastra/core/agent");
const { createTool } = await load("@mastra/core/tools");
const chosen =
  side === "own"
    ? { id: `gateway/${model}`, url: `${url}/v1`, apiKey: "x" }
    : (await load("@ai-sdk/anthropic")).createAnthropic({ baseURL: `${url}/v1`, apiKey: "x" })(model);
const agent = (more) => new Agent({ id: "ann", name: "Ann", instructions: "Be brief.", model: chosen, maxRetries: 0, ...more });

async function ask(text, png) {
  const picture = { type: "image", image: `data:image/png;base64,${png}`, mediaType: "image/png" };
  const content = [{ type: "text", text }, ...(png ? [picture] : [])];
  return (await agent().generate([{ role: "user", content }])).text;
}

async function* stream(text, abortSignal) {
  yield* (await agent().stream(text, { abortSignal })).textStream;
}

async function useTool(text, visit) {
  const execute = async ({ city }) => (visit(city), "rain");
  const weather = createTool({ id: "weather", description: "Return the weather.", inputSchema: City, execute });
  return (await agent({ tools: { weather } }).generate(text)).text;
}

const structure = async (text) => (await agent().generate(text, { structuredOutput: { schema: River } })).object;

await run(makeCases({ ask, stream, useTool, structure }));
