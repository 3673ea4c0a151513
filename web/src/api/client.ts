import { Signal } from "../shared/store";
import type { Asked, Inspection } from "./inspection";
import type { Chunk, Message, ModelEntry, Sampling } from "./types";

// The server answered with an error.
export class Refused extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

// No answer, or a broken one.
export class Unreachable extends Error {}

// A request failed without a valid key.
export const keyRefused = new Signal();

const KEY = "cortado.key";

// Kept only until the tab closes: a key is a secret.
export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key: string) => sessionStorage.setItem(KEY, key),
};

function headers(): Record<string, string> {
  const key = apiKey.get();
  return key ? { "Content-Type": "application/json", Authorization: `Bearer ${key}` }
    : { "Content-Type": "application/json" };
}

async function refusal(response: Response): Promise<Refused> {
  const text = await response.text().catch(() => "");
  let message = text || response.statusText;
  try {
    message = (JSON.parse(text) as Chunk).error?.message ?? message;
  } catch {
    // Not the server's JSON (but a proxy's text, say): shown as is.
  }
  return new Refused(response.status, message);
}

async function call(path: string, options: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { ...options, headers: headers() });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Unreachable("the server does not answer");
  }
  if (response.status === 401) keyRefused.now();
  if (!response.ok) throw await refusal(response);
  return response;
}

export async function listModels(): Promise<ModelEntry[]> {
  const list = (await (await call("/v1/models")).json()) as { data: ModelEntry[] };
  return list.data;
}

export async function isHealthy(): Promise<boolean> {
  const signal = AbortSignal.timeout(4000);
  return call("/health", { signal }).then(() => true, () => false);
}

// Sizes the examples: models need different numbers of tokens.
export async function countTokens(model: string, content: string): Promise<number> {
  const body = JSON.stringify({ model, content });
  return ((await (await call("/tokenize", { method: "POST", body })).json()) as { count: number }).count;
}

export async function inspect(asked: Asked): Promise<Inspection> {
  return (await (await call("/v1/inspect", { method: "POST", body: JSON.stringify(asked) })).json()) as Inspection;
}

export interface Question extends Sampling {
  model: string;
  messages: Message[];
  seed: number;
}

// Yields the data of a stream's events, until its [DONE].
async function* events(response: Response): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Unreachable("the answer broke off");
    const lines = (rest + value).split("\n");
    rest = lines.pop()!;
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield data;
    }
  }
}

// Streams an answer. Throws Refused, Unreachable or AbortError.
export async function* streamAnswer(question: Question, signal: AbortSignal): AsyncGenerator<Chunk> {
  const told = { stream: true, stream_options: { include_usage: true }, return_progress: true };
  const body = JSON.stringify({ ...question, ...told });
  const response = await call("/v1/chat/completions", { method: "POST", body, signal });
  try {
    for await (const data of events(response)) {
      const chunk = JSON.parse(data) as Chunk;
      if (chunk.error) throw new Refused(500, chunk.error.message ?? "the server failed");
      yield chunk;
    }
  } catch (error) {
    if (signal.aborted || error instanceof Refused || error instanceof Unreachable) throw error;
    throw new Unreachable("the connection to the server was lost");
  }
}
