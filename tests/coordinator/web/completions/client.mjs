// What OpenAI's own client for JavaScript reads of the door, as one JSON document: arguments are the address and a model.
import OpenAI from "openai";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "to be or not" }];
const models = [];
for await (const one of client.models.list()) models.push(one.id);
const whole = await client.chat.completions.create({ model, messages, max_tokens: 3 });
const pieces = [];
for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
  pieces.push(chunk.choices[0].delta.content ?? "");
}
let refused = null;
try {
  await client.chat.completions.create({ model: "gpt-4o", messages });
} catch (error) {
  refused = { status: error.status, code: error.code, param: error.param };
}
console.log(JSON.stringify({ models, said: whole.choices[0].message.content, usage: whole.usage, streamed: pieces.join(""), refused }));
