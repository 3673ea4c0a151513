// How fast an answer comes, and what its sequence takes in memory.
import { modelOf } from "../api/status";
import { bytes, withCommas } from "../shared/format";
import type { Answer } from "./tree";

export function speedOf(answer: Answer): string {
  const tokens = answer.usage?.completion_tokens ?? answer.tokens;
  const ms = answer.writeMs ?? 0;
  if (tokens < 2 || ms <= 0) return "";
  const firstMs = answer.firstMs ?? 0;
  // A busy browser is given all of a short answer at once: then its time is that of the whole.
  const together = ms < tokens / 10;
  const speed = together ? (tokens * 1000) / (firstMs + ms) : ((tokens - 1) * 1000) / ms;
  const seconds = firstMs / 1000;
  const first = seconds.toFixed(seconds < 1 ? 2 : 1);
  return `${speed.toFixed(speed < 10 ? 1 : 0)} tokens/s, the first after ${first} s`;
}

// What the server still had of the prompt from before.
export function rememberedOf(answer: Answer): string {
  const total = answer.usage?.prompt_tokens ?? answer.progress?.total;
  const cached = answer.usage?.prompt_tokens_details?.cached_tokens ?? answer.progress?.cache ?? 0;
  return total === undefined ? "" : `${withCommas(cached)} of ${withCommas(total)} tokens remembered`;
}

export interface SequenceMemory {
  used: number; // bytes
  full: number; // that full attention would use: keys and values of all tokens
  exact: boolean; // or no more than that
  growth: string; // how it goes on, where that is known
}

// Without the room that a cache has for tokens to come, so that it compares with full attention's.
export function memoryOf(answer: Answer): SequenceMemory | null {
  const { state_constant_bytes: constant, state_bytes_per_token: perToken, kv_cache_bytes_per_token: cachePerToken } =
    modelOf(answer.model) ?? {};
  if (constant === undefined || perToken === undefined || cachePerToken === undefined) return null;
  const { usage, progress } = answer;
  const tokens = usage?.total_tokens ?? (progress && progress.processed + answer.tokens);
  if (!tokens) return null; // the server has not said yet how long the prompt is
  // Windows fill; the server says at the end how far they are.
  const held = usage?.state_constant_bytes ?? constant;
  const exact = usage !== undefined || perToken > 0;
  return { used: held + perToken * tokens, full: cachePerToken * tokens, exact, growth: growthOf(perToken) };

  function growthOf(bytesPerToken: number): string {
    if (bytesPerToken > 0) return `+${bytes(bytesPerToken)} a token`;
    if (!usage) return "";
    return held < constant! ? `constant from ${bytes(constant!)} on` : "constant from here";
  }
}
