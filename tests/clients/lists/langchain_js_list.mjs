// The list of features that are tested with LangChain JS.
import { City, load, makeCases, model, NotOffered, River, run, side, url } from "./listing.mjs";

const { HumanMessage } = await load("@langchain/core/messages");
const { tool } = await load("@langchain/core/tools");
const settings = { model, apiKey: "x", maxRetries: 0 };
const openai = { ...settings, configuration: { baseURL: `${url}/v1` } };
const [name, kind, chosen] = {
  openai: ["openai", "ChatOpenAI", openai],
  responses: ["openai", "ChatOpenAI", { ...openai, useResponsesApi: true }],
  anthropic: ["anthropic", "ChatAnthropic", { ...settings, anthropicApiUrl: url }],
  google: ["google-genai", "ChatGoogleGenerativeAI", { ...settings, baseUrl: url }],
  ollama: ["ollama", "ChatOllama", { ...settings, baseUrl: url }],
}[side];
const chat = new (await load(`@langchain/${name}`))[kind](chosen);

async function ask(text, png) {
  if (png && side === "google") throw new NotOffered(); // only for names of models that it knows
  const picture = { type: "image_url", image_url: { url: `data:image/png;base64,${png}` } };
  return (await chat.invoke([new HumanMessage({ content: png ? [{ type: "text", text }, picture] : text })])).text;
}

async function* stream(text, signal) {
  for await (const chunk of await chat.stream(text, { signal })) yield chunk.text;
}

async function useTool(text, visit) {
  const weather = tool(({ city }) => (visit(city), "rain"), { name: "weather", schema: City });
  const [asked, bound] = [new HumanMessage(text), chat.bindTools([weather])];
  const called = await bound.invoke([asked]);
  const results = await Promise.all(called.tool_calls.map((call) => weather.invoke(call)));
  return (await bound.invoke([asked, called, ...results])).text;
}

const structure = (text) => chat.withStructuredOutput(River, { method: "jsonSchema" }).invoke(text);

await run(makeCases({ ask, stream, useTool, structure }));
