// `openai` of npm: chats, streams, structured output by a schema, tools that are run, errors.
const assert = require("node:assert/strict");
const OpenAI = require("openai");

const main = async () => {
  const client = new OpenAI();
  const model = (await client.models.list()).data[0].id;
  const sum = { model, temperature: 0, messages: [{ role: "user", content: "What is 17 + 25?" }] };

  const answer = await client.chat.completions.create(sum);
  assert.equal(answer.choices[0].message.content, "17 + 25 = 42.");

  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...sum, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  assert.equal(text, "17 + 25 = 42.");

  const stream = client.chat.completions.stream({ ...sum, stream_options: { include_usage: true } });
  assert.equal(await stream.finalContent(), "17 + 25 = 42.");
  assert.ok((await stream.totalUsage()).completion_tokens > 0);

  const schema = {
    type: "object",
    properties: { name: { type: "string" }, age: { type: "integer" } },
    required: ["name", "age"],
    additionalProperties: false,
  };
  const person = await client.chat.completions.parse({
    model,
    temperature: 0,
    messages: [{ role: "user", content: "Write JSON with the fields name, age: Maria, 31." }],
    response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema } },
  });
  assert.deepEqual(person.choices[0].message.parsed, { name: "Maria", age: 31 });

  const weather = {
    name: "get_weather",
    description: "Tell the weather of a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    parse: JSON.parse,
    function: async ({ city }) => (assert.equal(city, "Rome"), '{"temperature": 21, "sky": "sunny"}'),
  };
  const runner = client.chat.completions.runTools({
    model,
    temperature: 0,
    messages: [{ role: "user", content: "What is the weather in Rome?" }],
    tools: [{ type: "function", function: weather }],
    stream: true,
  });
  assert.match(await runner.finalContent(), /sunny/);

  await assert.rejects(client.chat.completions.create({ ...sum, temperature: -1 }), OpenAI.BadRequestError);
  await assert.rejects(client.models.retrieve("no-such-model"), OpenAI.NotFoundError);
};

main();
