// OpenAI's own package: node openai.mjs URL RULE QUESTION FOLLOWING prints both answers as a JSON list.
import OpenAI from "openai";

const [baseURL, rule, question, following] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const options = { model: "smollm2", temperature: 0, max_tokens: 8 };
const messages = [{ role: "system", content: rule }, { role: "user", content: question }];

const first = await client.chat.completions.create({ ...options, messages });
messages.push(first.choices[0].message, { role: "user", content: following });
let second = "";
for await (const chunk of await client.chat.completions.create({ ...options, messages, stream: true })) {
  second += chunk.choices[0]?.delta?.content ?? "";
}

const turn = { model: "smollm2", temperature: 0, max_output_tokens: 8, instructions: rule };
const one = await client.responses.create({ ...turn, input: question });
const two = await client.responses.create({ ...turn, input: following, previous_response_id: one.id });
if (one.output_text !== first.choices[0].message.content || two.output_text !== second) {
  throw new Error(`responses say ${one.output_text} and ${two.output_text}`);
}
console.log(JSON.stringify([first.choices[0].message.content, second]));
