// The fields of the server's replies that the page reads. Fields that older servers leave out are optional.

export interface ModelEntry {
  id: string;
  parameters?: number;
  weight_bytes?: number;
  memory?: string;
  context?: number;
  layers?: number;
  chat?: string | null; // its chat template; null: none, so it continues plain texts
  sampling?: Sampling; // defaults of a request
  state_bytes?: number; // after 4,096 tokens
  kv_cache_bytes?: number; // likewise, with full attention
  // For one sequence: its state's constant bytes, the bytes that each token adds, and those that it would add with full
  // attention everywhere.
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
  state_constant_bytes?: number; // the part of state_bytes that does not grow
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

// Progress of reading a prompt: of `total` tokens, `cache` were cached and `processed` are done, cached ones included.
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
