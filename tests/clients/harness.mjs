// Lets the AI SDK's harness for the Agent Client Protocol drive an agent:
// `node harness.mjs FOLDER WORKSPACE COMMAND ARGUMENT...`. The harness runs the agent, and a bridge to
// it, in a sandbox that offers a port. Its own sandboxes are a service and a simulated shell without
// ports, so the one here is the folder WORKSPACE. Prints one JSON object: the answer to "Hi", the answer
// to "EDIT", and the file a.txt afterwards.
import { spawn } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { dirname, resolve } from "node:path";
import { Readable } from "node:stream";
import { buffer, text } from "node:stream/consumers";
import { pathToFileURL } from "node:url";

const [folder, workspace, ...words] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { HarnessAgent } = await load("@ai-sdk/harness/agent");
const { createACP } = await load("@ai-sdk/harness-acp");
const port = await new Promise((done) => {
  const server = createServer().listen(0, "127.0.0.1", () => {
    const { port } = server.address();
    server.close(() => done(port));
  });
});
const started = [];

function start({ command, workingDirectory = ".", env, abortSignal: signal }) {
  // make clients has installed the packages of the bridge
  const run = command.startsWith("pnpm ") ? `ln -sfn ${folder}/node_modules node_modules` : command;
  const cwd = resolve(workspace, workingDirectory);
  const child = spawn("bash", ["-c", run], { cwd, env: { ...process.env, ...env }, signal });
  started.push(child);
  return [child, new Promise((done) => child.on("close", (code) => done({ exitCode: code ?? 1 })))];
}
function read(path) {
  try {
    return readFileSync(resolve(workspace, path));
  } catch {
    return null;
  }
}
async function write({ path, content }) {
  const file = resolve(workspace, path);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, content instanceof ReadableStream ? await buffer(content) : content);
}
const address = ({ port, protocol = "http" }) => `${protocol}://127.0.0.1:${port}`;
const session = {
  id: "local",
  description: "a folder of this machine",
  defaultWorkingDirectory: workspace,
  ports: [port],
  readFile: async ({ path }) => read(path) && Readable.toWeb(Readable.from([read(path)])),
  readBinaryFile: async ({ path }) => read(path),
  readTextFile: async ({ path }) => read(path)?.toString() ?? null,
  writeFile: write,
  writeBinaryFile: write,
  writeTextFile: write,
  spawn: async (options) => {
    const [child, ended] = start(options);
    const [stdout, stderr] = [Readable.toWeb(child.stdout), Readable.toWeb(child.stderr)];
    return { pid: child.pid, stdout, stderr, wait: () => ended, kill: async () => void child.kill() };
  },
  run: async (options) => {
    const [child, ended] = start(options);
    const [stdout, stderr] = await Promise.all([text(child.stdout), text(child.stderr)]);
    return { ...(await ended), stdout, stderr };
  },
  getPortUrl: async (options) => address(options),
  getPortEndpoint: async (options) => ({ url: address(options) }),
  stop: async () => {},
  destroy: async () => {},
  restricted: () => session,
};
const sandbox = {
  specificationVersion: "harness-sandbox-v1",
  providerId: "local",
  createSession: async ({ onFirstCreate } = {}) => {
    await onFirstCreate?.(session, {});
    return session;
  },
};
const program = "home/.local/bin/dragoman-acp";
const line = `exec ${words.map((each) => `'${each}'`).join(" ")}`;
const command = `printf '%s\\n' '#!/bin/bash' "${line}" > ${program}; chmod +x ${program}`;
const harness = createACP({
  harnessId: "dragoman",
  executable: "dragoman-acp",
  source: { type: "install-command", command },
  modelMapping: { type: "session-config-option", path: "model" },
});
const agent = new HarnessAgent({ harness, sandbox });
const opened = await agent.createSession();
try {
  const first = await agent.generate({ session: opened, prompt: "Hi" });
  const name = readdirSync(workspace).find((each) => each.startsWith("dragoman-"));
  const file = `${workspace}/${name}/a.txt`; // the harness gives each session a folder
  writeFileSync(file, "one\n");
  const streamed = await agent.stream({ session: opened, prompt: "EDIT" });
  let second = "";
  for await (const piece of streamed.textStream) second += piece;
  console.log(JSON.stringify({ first: first.text, second, file: readFileSync(file, "utf8") }));
} finally {
  await opened.destroy();
  started.forEach((child) => child.kill());
}
process.exit(0);
