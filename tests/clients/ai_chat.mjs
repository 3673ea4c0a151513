// Vercel's ai with a server that is OpenAI's alike: node ai_chat.mjs URL RULE QUESTION FOLLOWING
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { converse } from "./conversation.mjs";

const [baseURL, ...words] = process.argv.slice(2);
await converse(createOpenAICompatible({ name: "cortado", baseURL, apiKey: "none" })("smollm2"), ...words);
