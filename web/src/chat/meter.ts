// How fast an answer comes, and what its sequence takes in memory.
import { modelOf } from "../api/status";
import { ENTRY_TOKENS } from "../api/types";
import type { Answer } from "./tree";

export function speedOf(answer: Answer): string {
  const tokens = answer.usage?.completion_tokens ?? answer.tokens;
  const ms = answer.writeMs ?? 0;
  if (tokens < 2 || ms <= 0) return "";
  const speed = ((tokens - 1) * 1000) / ms;
  const first = ((answer.firstMs ?? 0) / 1000).toFixed(1);
  return `${speed.toFixed(speed < 10 ? 1 : 0)} tokens/s, the first after ${first} s`;
}

interface SequenceMemory {
  state: number; // bytes
  cache: number; // that keys and values of all tokens would take
  exact: boolean;
}

// The server says it at the end; until then, from what its list of models says of a longer sequence.
export function memoryOf(answer: Answer): SequenceMemory | null {
  const { usage } = answer;
  if (usage?.state_bytes !== undefined && usage.kv_cache_bytes !== undefined) {
    return { state: usage.state_bytes, cache: usage.kv_cache_bytes, exact: true };
  }
  const entry = modelOf(answer.model);
  const tokens = (answer.prompt ?? 0) + answer.tokens;
  if (!tokens || !entry?.state_bytes || !entry.kv_cache_bytes) return null;
  const cache = (entry.kv_cache_bytes / ENTRY_TOKENS) * tokens;
  const grows = entry.state_bytes >= 0.95 * entry.kv_cache_bytes;
  return { state: grows ? (entry.state_bytes / ENTRY_TOKENS) * tokens : entry.state_bytes, cache, exact: false };
}
