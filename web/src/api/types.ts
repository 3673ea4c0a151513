// What the server sends, as far as the page reads it. Fields that older servers leave out are optional.

export interface ModelEntry {
  id: string;
  parameters?: number;
  weight_bytes?: number;
  memory?: string;
  context?: number;
  layers?: number;
  state_bytes?: number; // after 4,096 tokens
  kv_cache_bytes?: number; // of as many
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number };
  state_bytes?: number;
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

export interface Chunk {
  choices?: { delta?: { content?: string }; finish_reason?: string | null }[];
  usage?: Usage | null;
  error?: { message?: string };
}

// The number of tokens that a model's entry gives its bytes for.
export const ENTRY_TOKENS = 4096;
