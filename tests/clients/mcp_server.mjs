// An MCP server of the official TypeScript SDK, over standard input and output:
// `node mcp_server.mjs FOLDER modern|earlier`. The first has the specification of 2026-07-28, the second that of 2025-11-25.
import { createRequire } from "node:module";

const [folder, era] = process.argv.slice(2);
const modern = era === "modern";
const require = createRequire(`${folder}/package.json`);
const { z } = require("zod");
const { McpServer } = require(modern ? "@modelcontextprotocol/server" : "@modelcontextprotocol/sdk/server/mcp.js");

function makeServer() {
  const server = new McpServer({ name: "typescript", version: "1.0.0" }, { capabilities: { tools: { listChanged: true } } });
  const link = { type: "resource_link", uri: "note://today", name: "note", description: "What to buy." };
  server.registerTool("link", { description: "Return a link." }, async () => ({ content: [link] }));
  const outputSchema = modern ? z.object({ degrees: z.number() }) : { degrees: z.number() };
  server.registerTool("measure", { description: "Return data.", outputSchema }, async () => ({
    content: [],
    structuredContent: { degrees: 21.5 },
  }));
  server.registerTool("m".repeat(100), { description: "A long name." }, async () => ({ content: [{ type: "text", text: "long" }] }));
  server.registerTool("change", { description: "Add a tool." }, async () => {
    server.registerTool("added", { description: "New." }, async () => ({ content: [{ type: "text", text: "added" }] }));
    return { content: [{ type: "text", text: "changed" }] };
  });
  return server;
}

if (modern) {
  const { serveStdio } = require("@modelcontextprotocol/server/stdio");
  serveStdio(makeServer);
} else {
  const { StdioServerTransport } = require("@modelcontextprotocol/sdk/server/stdio.js");
  await makeServer().connect(new StdioServerTransport());
}
