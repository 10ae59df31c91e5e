// Vercel's AI SDK against Everturn: node vercel_client.mjs http://127.0.0.1:PORT

import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";

const baseURL = `${process.argv[2]}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });

/** Settings with a tool that is called once in each exchange. */
function withTool(model, options) {
  const asked = [];
  const weather = tool({
    description: "The weather in a city.",
    inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"] }),
    execute: async ({ city }) => {
      asked.push(city);
      return "wind";
    },
  });
  const settings = {
    model: openai.responses(model),
    tools: { weather },
    stopWhen: stepCountIs(4),
    maxRetries: 0,
    providerOptions: { openai: options },
  };
  return { asked, settings };
}

async function said(id) {
  const items = [];
  for await (const item of client.conversations.items.list(id, { order: "asc" })) items.push(item);
  return items.filter((item) => item.type !== "reasoning").map((item) => item.content?.[0]?.text ?? item.type);
}

for (const model of ["chat", "responses", "claude"]) {
  // By default it refers to the items of its earlier steps.
  for (const options of [{}, { store: false, include: ["reasoning.encrypted_content"] }]) {
    const { asked, settings } = withTool(model, options);
    const messages = [{ role: "user", content: "Hello" }];
    const answer = await generateText({ ...settings, messages });
    assert.deepEqual(asked, ["Paris"], `${model} ${JSON.stringify(options)}`);
    assert.match(answer.text, /^The tool says: .*wind/);
    // Another exchange with everything before it.
    const more = [...messages, ...answer.response.messages, { role: "user", content: "And now?" }];
    const next = await generateText({ ...settings, tools: undefined, messages: more });
    assert.equal(next.text, "Heard 2: And now?", `${model} ${JSON.stringify(options)}`);
    const { asked: again, settings: streaming } = withTool(model, options);
    const stream = streamText({ ...streaming, messages });
    assert.match(await stream.text, /^The tool says: .*wind/);
    assert.deepEqual(again, ["Paris"]);
  }

  // In a conversation it sends everything again, except for what it knows to be there.
  const conversation = (await client.conversations.create({})).id;
  const { asked, settings } = withTool(model, { conversation });
  const messages = [{ role: "user", content: "Hello" }];
  const answer = await generateText({ ...settings, messages });
  assert.match(answer.text, /^The tool says: .*wind/);
  assert.equal(asked.length, 1);
  messages.push(...answer.response.messages, { role: "user", content: "And now?" });
  const next = await generateText({ ...settings, tools: undefined, messages });
  assert.equal(next.text, "Heard 2: And now?");
  const kept = await said(conversation);
  assert.deepEqual(kept, ["Hello", "function_call", "function_call_output", answer.text, "And now?", next.text], model);

  // A chain of responses.
  const first = await generateText({ model: openai.responses(model), prompt: "think", maxRetries: 0 });
  const previousResponseId = first.providerMetadata.openai.responseId;
  const second = await generateText({
    model: openai.responses(model),
    prompt: "more",
    maxRetries: 0,
    providerOptions: { openai: { previousResponseId } },
  });
  assert.equal(second.text, "Heard 2: more");
}
console.log("ok");
