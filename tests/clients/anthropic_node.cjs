// `@anthropic-ai/sdk` of npm: messages whole and streamed, a call of a tool, errors.
const assert = require("node:assert/strict");
const Anthropic = require("@anthropic-ai/sdk");

const main = async () => {
  const client = new Anthropic();
  const served = await (await fetch(`${process.env.ANTHROPIC_BASE_URL}/v1/models`)).json();
  const sum = {
    model: served.data[0].id,
    max_tokens: 64,
    temperature: 0,
    messages: [{ role: "user", content: "What is 17 + 25?" }],
  };

  const answer = await client.messages.create(sum);
  assert.deepEqual(answer.content.map((block) => block.text), ["17 + 25 = 42."]);

  let text = "";
  const stream = client.messages.stream(sum).on("text", (piece) => (text += piece));
  assert.equal((await stream.finalMessage()).stop_reason, "end_turn");
  assert.equal(text, "17 + 25 = 42.");

  const weather = {
    name: "get_weather",
    description: "Tell the weather of a city.",
    input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  };
  const asked = { ...sum, messages: [{ role: "user", content: "What is the weather in Rome?" }], tools: [weather] };
  const called = await client.messages.stream(asked).finalMessage();
  assert.equal(called.stop_reason, "tool_use");
  assert.deepEqual(called.content.at(-1).input, { city: "Rome" });

  await assert.rejects(client.messages.create({ ...sum, temperature: -1 }), Anthropic.BadRequestError);
  await assert.rejects(client.messages.create({ ...sum, model: "no-such-model" }), Anthropic.NotFoundError);
};

main();
