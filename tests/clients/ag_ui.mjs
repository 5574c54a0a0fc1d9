// The client of AG-UI against one agent of a service of sessions: `node ag_ui.mjs FOLDER URL KEY ANSWER`.
// Sends a message, answers the interrupt with ANSWER (JSON), and prints one JSON object: the interrupts, the types of the
// events, and the messages of the thread.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, url, key, answer] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { HttpAgent } = await import(pathToFileURL(require.resolve("@ag-ui/client")));

const agent = new HttpAgent({ url, threadId: "thread-1", headers: { Authorization: `Bearer ${key}` } });
const types = [];
const failures = [];
const watch = {
  onEvent: ({ event }) => void types.push(event.type),
  onRunFailed: ({ error }) => void failures.push(error.message),
};
agent.addMessage({ id: "m1", role: "user", content: "Pay." });
await agent.runAgent({ runId: "r1" }, watch);
const interrupts = structuredClone(agent.pendingInterrupts);
if (interrupts.length) {
  const resume = interrupts.map((each) => ({ interruptId: each.id, status: "resolved", payload: JSON.parse(answer) }));
  await agent.runAgent({ runId: "r2", resume }, watch);
}
console.log(JSON.stringify({ interrupts, types, failures, left: agent.pendingInterrupts, messages: agent.messages }));
