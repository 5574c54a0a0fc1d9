// The list of features that are tested with the Vercel AI SDK, which validates replies with zod.
import { City, expect, load, model, PNG, River, run, side, url } from "./listing.mjs";

const { generateObject, generateText, stepCountIs, streamObject, streamText, tool } = await load("ai");

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
const asked = (prompt) => ({ model: chosen, prompt, maxRetries: 0 });

const places = [];
const weather = tool({
  inputSchema: City,
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
    const picture = { type: "image", image: PNG, mediaType: "image/png" };
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
    for await (const part of made.fullStream) {
      if (part.type === "text-delta") stop.abort();
      if (part.type === "abort") return;
    }
    throw new Error("the stream was not aborted");
  },
};

await run(cases);
