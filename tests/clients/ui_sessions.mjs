// The chat of the AI SDK against one agent of a service of sessions: `node ui_sessions.mjs FOLDER URL KEY APPROVED`.
// Sends a message, answers each request for an approval, and prints one JSON object: the status of the chat, its error, and
// its messages.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, url, key, approved] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const ai = await import(pathToFileURL(require.resolve("ai-7")));

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
class Chat extends ai.AbstractChat {}

const reasons = [];
let finished;
const chat = new Chat({
  id: "chat-1",
  state: new State(),
  transport: new ai.DefaultChatTransport({ api: url, headers: { Authorization: `Bearer ${key}` } }),
  sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithApprovalResponses,
  onFinish: ({ finishReason }) => {
    reasons.push(finishReason);
    finished?.();
  },
});
await chat.sendMessage({ text: "Pay." });
const asked = chat.messages.at(-1).parts.filter((part) => part.state === "approval-requested");
for (const part of asked) {
  const done = new Promise((resolve) => (finished = resolve));
  await chat.addToolApprovalResponse({ id: part.approval.id, approved: approved === "yes", reason: "checked" });
  await done;
}
console.log(JSON.stringify({ status: chat.status, error: chat.error?.message, reasons, asked, messages: chat.messages }));
