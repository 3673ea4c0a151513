// What the server sends, as far as the page reads it. Fields that older servers leave out are optional.

export interface ModelEntry {
  id: string;
  parameters?: number;
  weight_bytes?: number;
  memory?: string;
  context?: number;
  layers?: number;
  chat?: string | null; // its chat template; null: it was not taught to chat, and goes on with texts
  sampling?: Sampling; // where a request says nothing
  state_bytes?: number; // after 4,096 tokens
  kv_cache_bytes?: number; // of as many
  // Of a sequence: what of its state stays as it is, and what every token adds to it; with full attention everywhere,
  // what every token would add.
  state_constant_bytes?: number;
  state_bytes_per_token?: number;
  kv_cache_bytes_per_token?: number;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number };
  state_bytes?: number;
  state_constant_bytes?: number; // the part of it that does not grow
  kv_cache_bytes?: number;
}

export interface Message {
  role: "system" | "user" | "assistant";
  content: string;
}

export interface Sampling {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  repetition_penalty?: number;
  max_tokens?: number;
  stop?: string[];
}

// How far the server has come with a prompt: of `total` tokens it remembered `cache`, and it has `processed` so many,
// those included.
export interface Progress {
  total: number;
  cache: number;
  processed: number;
}

export interface Chunk {
  choices?: { delta?: { content?: string }; finish_reason?: string | null }[];
  usage?: Usage | null;
  prompt_progress?: Progress;
  error?: { message?: string };
}
