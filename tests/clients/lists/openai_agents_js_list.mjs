// The list of features that are tested with the OpenAI Agents SDK for JavaScript.
import { City, load, makeCases, model, River, run, side, url } from "./listing.mjs";

const { Agent, OpenAIProvider, Runner, tool } = await load("@openai/agents");
const { OpenAI } = await load("openai");
const openAIClient = new OpenAI({ baseURL: `${url}/v1`, apiKey: "x", maxRetries: 0 });
const modelProvider = new OpenAIProvider({ openAIClient, useResponses: side === "responses" });
const runner = new Runner({ modelProvider, tracingDisabled: true });
const agent = (more) => new Agent({ name: "Ann", instructions: "Be brief.", model, ...more });

async function ask(text, png) {
  const picture = { type: "input_image", image: `data:image/png;base64,${png}` };
  const content = [{ type: "input_text", text }, ...(png ? [picture] : [])];
  return (await runner.run(agent(), [{ role: "user", content }])).finalOutput;
}

async function* stream(text, signal) {
  const made = await runner.run(agent(), text, { stream: true, signal });
  yield* made.toTextStream();
  await made.completed;
}

async function useTool(text, visit) {
  const execute = ({ city }) => (visit(city), "rain");
  const weather = tool({ name: "weather", description: "Return the weather.", parameters: City, execute });
  return (await runner.run(agent({ tools: [weather] }), text)).finalOutput;
}

const structure = async (text) => (await runner.run(agent({ outputType: River }), text)).finalOutput;

await run(makeCases({ ask, stream, useTool, structure }));
