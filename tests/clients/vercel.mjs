// The feature list of the Vercel AI SDK against one model of a gateway: `node vercel.mjs FOLDER URL SIDE MODEL`.
// Prints one JSON object: what became of each feature, "yes" or why not.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, url, side, model] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { generateObject, generateText, stepCountIs, streamObject, streamText, tool } = await load("ai");
const { z } = await load("zod");

const sides = {
  compatible: async () =>
    (await load("@ai-sdk/openai-compatible")).createOpenAICompatible({
      name: "gateway",
      baseURL: `${url}/v1`,
      apiKey: "x",
      supportsStructuredOutputs: true,
      includeUsage: true,
    })(model),
  chat: async () => (await load("@ai-sdk/openai")).createOpenAI({ baseURL: `${url}/v1`, apiKey: "x" }).chat(model),
  responses: async () => (await load("@ai-sdk/openai")).createOpenAI({ baseURL: `${url}/v1`, apiKey: "x" })(model),
  anthropic: async () => (await load("@ai-sdk/anthropic")).createAnthropic({ baseURL: `${url}/v1`, apiKey: "x" })(model),
  google: async () =>
    (await load("@ai-sdk/google")).createGoogleGenerativeAI({ baseURL: `${url}/v1beta`, apiKey: "x" })(model),
};
const chosen = await sides[side]();
const River = z.object({ name: z.string(), km: z.number() });
const asked = (prompt) => ({ model: chosen, prompt, maxRetries: 0 });

function expect(found, wanted) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (one !== other) throw new Error(`found ${one}, wanted ${other}`);
}

const places = [];
const weather = tool({
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    places.push(city);
    return `rain in ${city}`;
  },
});
const loop = (prompt) => ({ ...asked(prompt), tools: { weather }, stopWhen: stepCountIs(3) });

async function drain(result) {
  for await (const part of result.fullStream) if (part.type === "error") throw part.error;
}

const cases = {
  async completes() {
    const made = await generateText(asked("Hi"));
    expect([made.text, made.finishReason, made.usage.inputTokens > 0], ["Hello there", "stop", true]);
  },
  async streams() {
    const made = streamText(asked("Hi"));
    await drain(made);
    expect([await made.text, (await made.usage).outputTokens > 0], ["Hello there", true]);
  },
  async tools() {
    places.length = 0;
    const made = await generateText(loop("CALL"));
    expect([made.text, made.steps.length, places], ["It rains.", 2, ["Paris"]]);
  },
  async toolsStreamed() {
    places.length = 0;
    const made = streamText(loop("CALL"));
    await drain(made);
    expect([await made.text, places], ["It rains.", ["Paris"]]);
  },
  async parallel() {
    places.length = 0;
    const made = await generateText(loop("BOTH"));
    expect([made.text, places], ["It rains.", ["Paris", "Rome"]]);
  },
  async toolsAfterThinking() {
    places.length = 0;
    const made = await generateText(loop("PONDER"));
    expect([made.text, places], ["It rains.", ["Paris"]]);
  },
  async structured() {
    const made = await generateObject({ ...asked("RIVER"), schema: River });
    expect(made.object, { name: "Rhine", km: 1233 });
  },
  async structuredStreamed() {
    const made = streamObject({ ...asked("RIVER"), schema: River });
    for await (const part of made.fullStream) if (part.type === "error") throw part.error;
    expect(await made.object, { name: "Rhine", km: 1233 });
  },
  async jsonMode() {
    const made = await generateObject({ ...asked("RIVER as JSON"), output: "no-schema" });
    expect(made.object.km, 1233);
  },
  async thinking() {
    expect((await generateText(asked("THINK"))).text, "Yes.");
  },
  async settings() {
    const made = await generateText({
      ...asked("Hi"),
      system: "Be brief.",
      maxOutputTokens: 50,
      temperature: 0.5,
      topP: 0.9,
      stopSequences: ["END"],
      seed: 7,
    });
    expect(made.text, "Hello there");
  },
  async image() {
    const picture = { type: "image", image: "iVBORw0KGgo=", mediaType: "image/png" };
    const content = [{ type: "text", text: "What?" }, picture];
    const made = await generateText({ model: chosen, messages: [{ role: "user", content }], maxRetries: 0 });
    expect(made.text, "Hello there");
  },
  async errors() {
    for (const [status, again] of [[400, false], [429, true], [500, true]]) {
      try {
        await generateText(asked(`E${status}`));
      } catch (error) {
        expect([error.statusCode, error.isRetryable], [status, again]);
        continue;
      }
      throw new Error(`no error for ${status}`);
    }
  },
  async abort() {
    const stop = new AbortController();
    const made = streamText({ ...asked("SLOW"), abortSignal: stop.signal });
    let heard = 0;
    for await (const part of made.fullStream) {
      if (part.type === "text-delta" && ++heard === 2) stop.abort();
      if (part.type === "abort") return;
    }
    throw new Error("the stream was not aborted");
  },
};

const found = {};
for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
    found[name] = "yes";
  } catch (error) {
    found[name] = `no: ${error.name}: ${error.message} ${error.responseBody ?? ""} ${error.cause ?? ""}`.slice(0, 600);
  }
}
console.log(JSON.stringify(found));
process.exit(0); // idle connections would keep the program alive
