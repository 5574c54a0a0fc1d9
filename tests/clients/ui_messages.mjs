// The chat of the AI SDK, which `useChat` is made of, against one endpoint: `node ui_messages.mjs FOLDER URL`.
// Prints one JSON object: the status of the chat, its error, its last message, and how the reply finished.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, url] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { AbstractChat, DefaultChatTransport } = await import(pathToFileURL(require.resolve("ai")));

// The state that useChat keeps in React.
class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => this.messages.push(message);
  popMessage = () => this.messages.pop();
  replaceMessage = (index, message) => (this.messages[index] = message);
  snapshot = (value) => structuredClone(value);
}
class Chat extends AbstractChat {}

const seen = {};
const chat = new Chat({
  state: new State(),
  transport: new DefaultChatTransport({ api: url }),
  onFinish: ({ finishReason, isError, isDisconnect }) => Object.assign(seen, { finishReason, isError, isDisconnect }),
});
await chat.sendMessage({ text: "Hi" });
const last = chat.messages.at(-1);
console.log(JSON.stringify({ status: chat.status, error: chat.error?.message, count: chat.messages.length, last, ...seen }));
