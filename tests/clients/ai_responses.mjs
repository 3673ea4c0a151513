// Vercel's ai with what it uses for OpenAI, /v1/responses: node ai_responses.mjs URL RULE QUESTION FOLLOWING
import { createOpenAI } from "@ai-sdk/openai";
import { converse } from "./conversation.mjs";

const [baseURL, ...words] = process.argv.slice(2);
await converse(createOpenAI({ baseURL, apiKey: "none" })("smollm2"), ...words);
