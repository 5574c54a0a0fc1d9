// What an editor does with an agent, by the Agent Client Protocol's own library:
// `node editor.mjs FOLDER WORKSPACE FEATURES SERVER COMMAND ARGUMENT...`. Prints one JSON object:
// what became of each feature (or of those named, with commas), "yes" or why not. SERVER is a
// Python program, an MCP server.
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const [folder, cwd, features, server, command, ...words] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const acp = await import(pathToFileURL(require.resolve("@agentclientprotocol/sdk")));
const { agent: ask, client: told } = acp.methods;
const file = `${cwd}/a.txt`;
const started = [];

function expect(found, wanted) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (one !== other) throw new Error(`found ${one}, wanted ${other}`);
}

// Starts the agent; keeps its updates, and answers its questions with the next of `answers`.
async function open(answers = [], form = {}) {
  const child = spawn(command, words, { stdio: ["pipe", "pipe", "ignore"] });
  started.push(child);
  const updates = [];
  const waiting = [];
  const app = acp
    .client({ name: "editor" })
    .onNotification(told.session.update, ({ params }) => {
      updates.push(params);
      waiting.splice(0).forEach((wake) => wake());
    })
    .onRequest(told.session.requestPermission, () => {
      const optionId = answers.shift();
      return { outcome: optionId ? { outcome: "selected", optionId } : { outcome: "cancelled" } };
    })
    .onRequest(told.elicitation.create, () => ({ action: "accept", content: form }));
  const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
  const { agent } = app.connect(stream);
  const { agentCapabilities, authMethods } = await agent.request(ask.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: { elicitation: { form: {} } },
  });
  const text = (id, kind = "agent_message_chunk") =>
    updates
      .filter((each) => each.sessionId === id && each.update.sessionUpdate === kind)
      .map((each) => each.update.content.text)
      .join("");
  return {
    agentCapabilities,
    authMethods,
    updates,
    text,
    request: (method, params) => agent.request(method, params),
    notify: (method, params) => agent.notify(method, params),
    begin: async () => (await agent.request(ask.session.new, { cwd, mcpServers: [] })).sessionId,
    prompt: async (sessionId, text) =>
      (await agent.request(ask.session.prompt, { sessionId, prompt: [{ type: "text", text }] })).stopReason,
    until: async (holds) => {
      while (!holds()) await new Promise((wake) => waiting.push(wake));
    },
    close: () =>
      new Promise((done) => {
        child.on("exit", (code) => done(code));
        child.stdin.end();
      }),
  };
}

async function edit(answers, form) {
  writeFileSync(file, "one\n");
  const editor = await open(answers, form);
  const id = await editor.begin();
  const reason = await editor.prompt(id, "EDIT");
  const calls = editor.updates.map((each) => each.update).filter((each) => each.toolCallId);
  expect([reason, editor.text(id), await editor.close()], ["end_turn", "I edit it.Done.", 0]);
  return [readFileSync(file, "utf8"), calls.at(-1).status, calls[0].content[0].newText];
}

const cases = {
  async allowed() {
    expect(await edit(["yes"]), ["two\n", "completed", "two"]);
  },
  async denied() {
    expect(await edit(["no"]), ["one\n", "failed", "two"]);
  },
  async edited() {
    expect(await edit(["edit"], { new: "three" }), ["three\n", "completed", "two"]);
  },
  async cancelled() {
    const editor = await open();
    const id = await editor.begin();
    const asked = editor.prompt(id, "SLOW");
    await editor.until(() => editor.text(id));
    await editor.notify(ask.session.cancel, { sessionId: id });
    expect([await asked, editor.text(id).endsWith("six")], ["cancelled", false]);
    expect([await editor.prompt(id, "Hi"), await editor.close()], ["end_turn", 0]);
  },
  async twoAtOnce() {
    const editor = await open();
    const [slow, quick] = [await editor.begin(), await editor.begin()];
    const asked = editor.prompt(slow, "SLOW");
    await editor.until(() => editor.text(slow));
    expect([await editor.prompt(quick, "Hi"), editor.text(quick)], ["end_turn", "Hello there"]);
    expect([await asked, editor.text(slow)], ["end_turn", "one two three four five six"]);
    await editor.close();
  },
  async resumedInANewProcess() {
    const first = await open();
    const id = await first.begin();
    await first.prompt(id, "Hi");
    await first.close();
    const second = await open();
    expect(second.agentCapabilities.loadSession, true);
    await second.request(ask.session.load, { cwd, sessionId: id, mcpServers: [] });
    expect([second.text(id, "user_message_chunk"), second.text(id)], ["Hi", "Hello there"]);
    expect([await second.prompt(id, "COUNT"), second.text(id)], ["end_turn", "Hello there3 messages"]);
    await second.close();
    const third = await open();
    await third.request(ask.session.resume, { cwd, sessionId: id, mcpServers: [] });
    expect([await third.prompt(id, "COUNT"), third.text(id)], ["end_turn", "5 messages"]);
    await third.close();
  },
  async mcpServers() {
    const editor = await open(["always"]);
    const tools = (program) => ({ name: "my tools", command, args: [program], env: [] });
    const started = await editor.request(ask.session.new, { cwd, mcpServers: [tools(server)] });
    await editor.prompt(started.sessionId, "ADD");
    const result = editor.updates.findLast((each) => each.update.toolCallId).update;
    expect([result.status, result.content[0].content.text], ["completed", "```\n5\n```"]);
    const broken = { cwd, mcpServers: [tools("/none.py")] };
    const error = await editor.request(ask.session.new, broken).catch((reason) => reason);
    expect([error.code, error.message.includes("/none.py")], [-32603, true]);
    await editor.close();
  },
  async listed() {
    const first = await open();
    const id = await first.begin();
    await first.prompt(id, "Hi");
    await first.close();
    const second = await open();
    const { sessions } = await second.request(ask.session.list, { cwd });
    const [found] = sessions.filter((each) => each.sessionId === id);
    expect([found.cwd, found.title, second.agentCapabilities.sessionCapabilities.list], [cwd, "Hi", {}]);
    await second.close();
  },
  async options() {
    const editor = await open(["no"]);
    const { sessionId, configOptions } = await editor.request(ask.session.new, { cwd, mcpServers: [] });
    expect(configOptions.map((each) => each.category), ["model", "mode", "thought_level"]);
    const chosen = { sessionId, configId: "mode", value: "allow" };
    const answer = await editor.request(ask.session.setConfigOption, chosen);
    expect(answer.configOptions[1].currentValue, "allow");
    writeFileSync(file, "one\n");
    await editor.prompt(sessionId, "EDIT");
    expect([readFileSync(file, "utf8"), editor.authMethods[0].id], ["two\n", "stored-key"]);
    await editor.close();
  },
  async errors() {
    const editor = await open();
    const lost = { cwd, sessionId: "none", mcpServers: [] };
    const error = await editor.request(ask.session.load, lost).catch((reason) => reason);
    expect([error.code, error.message], [-32602, "there is no session 'none' in this log"]);
    await editor.request(ask.session.close, { sessionId: "none" }); // the library accepts -32002
    await editor.close();
  },
};

const found = {};
for (const name of features === "all" ? Object.keys(cases) : features.split(",")) {
  try {
    await cases[name]();
    found[name] = "yes";
  } catch (error) {
    found[name] = `no: ${error.name}: ${error.message} ${JSON.stringify(error.data ?? "")}`.slice(0, 600);
    started.forEach((child) => child.kill()); // a running agent would lock the log
  }
}
console.log(JSON.stringify(found));
process.exit(0);
