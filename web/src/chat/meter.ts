// An answer's speed, and the memory of its sequence.
import { modelOf } from "../api/status";
import { bytes, withCommas } from "../shared/format";
import type { Answer } from "./tree";

export function speedOf(answer: Answer): string {
  const tokens = answer.usage?.completion_tokens ?? answer.tokens;
  const ms = answer.writeMs ?? 0;
  if (tokens < 2 || ms <= 0) return "";
  const firstMs = answer.firstMs ?? 0;
  // A busy browser gets a short answer at once; then the total time counts.
  const together = ms < tokens / 10;
  const speed = together ? (tokens * 1000) / (firstMs + ms) : ((tokens - 1) * 1000) / ms;
  const seconds = firstMs / 1000;
  const first = seconds.toFixed(seconds < 1 ? 2 : 1);
  return `${speed.toFixed(speed < 10 ? 1 : 0)} tokens/s, the first after ${first} s`;
}

// How much of the prompt the server had cached.
export function rememberedOf(answer: Answer): string {
  const total = answer.usage?.prompt_tokens ?? answer.progress?.total;
  const cached = answer.usage?.prompt_tokens_details?.cached_tokens ?? answer.progress?.cache ?? 0;
  return total === undefined ? "" : `${withCommas(cached)} of ${withCommas(total)} tokens remembered`;
}

export interface SequenceMemory {
  used: number; // bytes
  full: number; // bytes of all tokens' keys and values, which full attention would use
  exact: boolean; // else an upper bound
  growth: string; // how it grows, if known
}

// Leaves out a cache's room for later tokens, so that the bytes compare with full attention's.
export function memoryOf(answer: Answer): SequenceMemory | null {
  const { state_constant_bytes: constant, state_bytes_per_token: perToken, kv_cache_bytes_per_token: cachePerToken } =
    modelOf(answer.model) ?? {};
  if (constant === undefined || perToken === undefined || cachePerToken === undefined) return null;
  const { usage, progress } = answer;
  const tokens = usage?.total_tokens ?? (progress && progress.processed + answer.tokens);
  if (!tokens) return null; // the server has not said yet how long the prompt is
  // Windows fill up; the final usage has their size.
  const held = usage?.state_constant_bytes ?? constant;
  const exact = usage !== undefined || perToken > 0;
  return { used: held + perToken * tokens, full: cachePerToken * tokens, exact, growth: growthOf(perToken) };

  function growthOf(bytesPerToken: number): string {
    if (bytesPerToken > 0) return `+${bytes(bytesPerToken)}/token`;
    if (!usage) return "";
    return held < constant! ? `constant from ${bytes(constant!)} on` : "constant from here";
  }
}
