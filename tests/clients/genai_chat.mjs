// A chat of Google's SDK: three calls of a tool and a text, whole or streamed.
import { GoogleGenAI } from "@google/genai";

const [baseUrl, mode] = process.argv.slice(2);
const sdk = new GoogleGenAI({ apiKey: "k", httpOptions: { baseUrl } });
const schema = { type: "object", properties: { at: { type: "string" } } };
const look = { name: "look", description: "Looks.", parametersJsonSchema: schema };
const chat = sdk.chats.create({
  model: "m",
  config: {
    maxOutputTokens: 20000,
    thinkingConfig: { includeThoughts: true, thinkingLevel: "HIGH" },
    tools: [{ functionDeclarations: [look] }],
  },
});

async function ask(message) {
  if (mode === "whole") return [await chat.sendMessage({ message })];
  const chunks = [];
  for await (const chunk of await chat.sendMessageStream({ message })) chunks.push(chunk);
  return chunks;
}

let message = "Where?";
let text = "";
for (let turn = 0; turn < 4; turn++) {
  const chunks = await ask(message);
  text = chunks.map((chunk) => chunk.text ?? "").join("");
  const calls = chunks.flatMap((chunk) => chunk.functionCalls ?? []);
  message = calls.map(({ id, name }) => ({
    functionResponse: { id, name, response: { result: "there" } },
  }));
}
console.log(JSON.stringify({ text, turns: chat.getHistory(true).length }));
