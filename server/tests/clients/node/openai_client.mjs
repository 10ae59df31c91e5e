// The official openai package against Everturn: node openai_client.mjs http://127.0.0.1:PORT

import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const weather = {
  type: "function",
  name: "weather",
  description: "The weather in a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  strict: false,
};

async function all(pages) {
  const found = [];
  for await (const entry of pages) found.push(entry);
  return found;
}

async function conversations() {
  const made = await client.conversations.create({
    items: [{ type: "message", role: "user", content: "Hello" }],
    metadata: { topic: "demo" },
  });
  assert.equal(made.object, "conversation");
  assert.deepEqual((await client.conversations.retrieve(made.id)).metadata, { topic: "demo" });
  assert.deepEqual((await client.conversations.update(made.id, { metadata: { a: "b" } })).metadata, { a: "b" });
  const added = await client.conversations.items.create(made.id, {
    items: [{ role: "assistant", content: "Hi" }, { role: "user", content: "More" }],
  });
  assert.equal(added.data.length, 2);
  const items = await all(client.conversations.items.list(made.id, { order: "asc", limit: 1 }));
  assert.deepEqual(items.map((item) => item.content[0].text), ["Hello", "Hi", "More"]);
  const one = await client.conversations.items.retrieve(items[1].id, { conversation_id: made.id });
  assert.equal(one.id, items[1].id);
  await client.conversations.items.delete(items[2].id, { conversation_id: made.id });
  assert.equal((await all(client.conversations.items.list(made.id))).length, 2);
  assert.equal((await client.conversations.delete(made.id)).deleted, true);
  await assert.rejects(client.conversations.retrieve(made.id), OpenAI.NotFoundError);
}

async function responses(model) {
  const conversation = await client.conversations.create();
  const first = await client.responses.create({ model, input: "One", conversation: conversation.id });
  assert.equal(first.output_text, "Heard 1: One");
  let words = "";
  const kinds = [];
  for await (const event of await client.responses.create({ model, input: "Two", conversation: conversation.id, stream: true })) {
    kinds.push(event.type);
    if (event.type === "response.output_text.delta") words += event.delta;
  }
  assert.equal(words, "Heard 2: Two");
  assert.equal(kinds.at(-1), "response.completed");
  const aside = await client.responses.create({ model, input: "Aside", previous_response_id: first.id });
  assert.equal(aside.output_text, "Heard 2: Aside");
  assert.equal((await client.responses.retrieve(aside.id)).output_text, "Heard 2: Aside");
  assert.equal((await all(client.responses.inputItems.list(aside.id))).length, 1);
  await client.responses.delete(aside.id);
  await assert.rejects(client.responses.retrieve(aside.id), OpenAI.NotFoundError);

  const stream = client.responses.stream({ model, input: "Weather?", conversation: conversation.id, tools: [weather] });
  const asked = await stream.finalResponse();
  const call = asked.output.find((item) => item.type === "function_call");
  assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
  const answer = await client.responses.create({
    model,
    conversation: conversation.id,
    tools: [weather],
    input: [{ type: "function_call_output", call_id: call.call_id, output: "rain" }],
  });
  assert.equal(answer.output_text, "The tool says: rain");
  await client.conversations.delete(conversation.id);
}

async function others() {
  const running = await client.responses.create({ model: "chat", input: "forever", background: true });
  assert.equal((await client.responses.cancel(running.id)).status, "cancelled");
  await assert.rejects(client.responses.create({ model: "nobody", input: "x" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
  await assert.rejects(client.responses.create({ model: "chat", input: "refuse" }), OpenAI.BadRequestError);
  let words = "";
  let usage;
  const messages = [{ role: "user", content: "Hello" }];
  const options = { include_usage: true };
  for await (const chunk of await client.chat.completions.create({ model: "chat", messages, stream: true, stream_options: options })) {
    words += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage;
  }
  assert.equal(words, "Heard 1: Hello");
  assert.equal(usage.total_tokens, 18);
  const vectors = await client.embeddings.create({ model: "embed", input: ["ab"] });
  assert.deepEqual(vectors.data[0].embedding, [2, 0.5, -1]);
  const names = (await all(client.models.list())).map((model) => model.id);
  assert.ok(names.includes("chat"));
}

await conversations();
for (const model of ["chat", "responses", "claude"]) await responses(model);
await others();
console.log("ok");
