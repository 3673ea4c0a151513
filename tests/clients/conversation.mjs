// Vercel's ai: a conversation of two questions with a model, the second answer as a stream.
import { generateText, streamText } from "ai";

export async function converse(model, rule, question, following) {
  const options = { model, temperature: 0, maxOutputTokens: 8, maxRetries: 0, system: rule };
  const messages = [{ role: "user", content: question }];
  const first = await generateText({ ...options, messages });
  messages.push(...first.response.messages, { role: "user", content: following });
  let second = "";
  let failed;
  const stream = streamText({ ...options, messages, onError: ({ error }) => (failed = error) });
  for await (const part of stream.textStream) second += part;
  if (failed) throw failed;
  console.log(JSON.stringify([first.text, second]));
}
