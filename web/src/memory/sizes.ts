// Bytes of a sequence: keys and values of every token, or a state of constant size.
import { KINDS, type Numbers } from "./kinds";

export interface Shape {
  layers: number;
  heads: number;
  kvHeads: number;
  headSize: number;
  parameters: number;
}

export const PRESETS: Record<string, Shape> = {
  "SmolLM2 135M": shape(30, 9, 3, 64, 134.5e6),
  "SmolLM2 360M": shape(32, 15, 5, 64, 361.8e6),
  "Qwen2.5 0.5B": shape(24, 14, 2, 64, 494e6),
  "TinyLlama 1.1B": shape(22, 32, 4, 64, 1.1e9),
  "Llama 3.2 1B": shape(16, 32, 8, 64, 1.236e9),
  "SmolLM2 1.7B": shape(24, 32, 32, 64, 1.711e9),
  "Gemma 2 2B": shape(26, 8, 4, 256, 2.614e9),
  "Llama 3.2 3B": shape(28, 24, 8, 128, 3.213e9),
  "Llama 2 7B": shape(32, 32, 32, 128, 6.738e9),
  "Mistral 7B": shape(32, 32, 8, 128, 7.248e9),
  "Llama 3.1 8B": shape(32, 32, 8, 128, 8.03e9),
  "Llama 2 13B": shape(40, 40, 40, 128, 13.016e9),
  "Qwen2.5 32B": shape(64, 40, 8, 128, 32.76e9),
  "Llama 3.1 70B": shape(80, 64, 8, 128, 70.55e9),
};

function shape(layers: number, heads: number, kvHeads: number, headSize: number, parameters: number): Shape {
  return { layers, heads, kvHeads, headSize, parameters };
}

export interface Settings extends Shape {
  preset: string; // "": custom numbers
  tokens: number;
  full: number; // layers of the hybrid that keep keys and values
  kind: string; // mixer of the other layers: one of KINDS
  size: number; // 0: the default
  perQuery: boolean; // one state per query head, not per key head
  batch: number;
  cacheBytes: number; // per number in caches
  stateBytes: number; // per number in states
  gqa: boolean; // off: every query head has its own keys and values
  weights: boolean; // add cacheBytes per weight
  linear: boolean; // linear axes
}

export const DEFAULTS: Settings = {
  ...PRESETS["Llama 3.1 8B"]!, preset: "Llama 3.1 8B", tokens: 131072, full: 4, kind: "linear", size: 0,
  perQuery: false, batch: 1, cacheBytes: 2, stateBytes: 4,
  gqa: true, weights: false, linear: false,
};

export const MOST_TOKENS = 1e7;

// Returns the number of key heads.
export const pairs = (it: Settings): number => (it.gqa ? it.kvHeads : it.heads);

// Bytes per token, layer and sequence.
export const cachePerToken = (it: Settings): number => 2 * pairs(it) * it.headSize * it.cacheBytes;

export const kindOf = (it: Settings) => KINDS[it.kind]!;
export const stateSizes = (it: Settings) => ({
  states: it.perQuery ? it.heads : pairs(it), headSize: it.headSize, size: it.size || (kindOf(it).size?.usual ?? 0),
});
const stateNumbers = (it: Settings): Numbers => kindOf(it).numbers(stateSizes(it));

export function statePerLayer(it: Settings): number {
  const { sums, pairs: kept } = stateNumbers(it);
  return (sums + kept) * it.stateBytes;
}

export interface Memory {
  perToken: number;
  constant: number;
}

export function memories(it: Settings): { full: Memory; linear: Memory; hybrid: Memory } {
  const weights = it.weights ? it.parameters * it.cacheBytes : 0;
  const of = (layers: number): Memory => ({
    perToken: it.batch * layers * cachePerToken(it),
    constant: it.batch * (it.layers - layers) * statePerLayer(it) + weights,
  });
  return { full: of(it.layers), linear: of(0), hybrid: of(Math.min(it.full, it.layers)) };
}

// Multiplications and additions per token after n others, without products with weights: constant + perToken n.
// Each query head reads each number of its head's state once; the sums are written as well.
export function works(it: Settings): { full: Memory; linear: Memory; hybrid: Memory } {
  const { sums, pairs: kept } = stateNumbers(it);
  const readers = it.heads / stateSizes(it).states;
  const of = (layers: number): Memory => ({
    perToken: it.batch * layers * 4 * it.heads * it.headSize,
    constant: it.batch * (it.layers - layers) * 2 * (sums + readers * (sums + kept)),
  });
  return { full: of(it.layers), linear: of(0), hybrid: of(Math.min(it.full, it.layers)) };
}

// Sums the work of all prompt tokens.
export const promptWork = (work: Memory, tokens: number): number =>
  work.constant * tokens + (work.perToken * tokens * (tokens + 1)) / 2;

export const bytesAt = (memory: Memory, tokens: number): number => memory.constant + memory.perToken * tokens;

// Returns how the memory grows with n tokens.
export const orderOf = (memory: Memory): string => (memory.perToken > 0 ? "O(n)" : "O(1)");

// Returns the length of the longest sequence that fits; Infinity: any, 0: none.
export function longest(memory: Memory, limit: number): number {
  if (memory.constant > limit) return 0;
  return memory.perToken > 0 ? Math.floor((limit - memory.constant) / memory.perToken) : Infinity;
}

// Puts settings into the address, so that a link restores them; omits defaults.
export function toQuery(settings: Settings): string {
  const query = new URLSearchParams();
  const first: Settings = { ...DEFAULTS, ...PRESETS[settings.preset] };
  for (const [key, value] of Object.entries(settings)) {
    const expected = key === "preset" ? DEFAULTS.preset : first[key as keyof Settings];
    if (value !== expected) query.set(key, String(value));
  }
  return query.toString();
}

const MOST: Partial<Record<keyof Settings, number>> = { tokens: MOST_TOKENS, layers: 1000, full: 1000, size: 1e6, batch: 100000 };

export function fromQuery(text: string): Settings {
  const query = new URLSearchParams(text);
  const preset = query.get("preset") ?? DEFAULTS.preset;
  const settings: Settings = { ...DEFAULTS, ...PRESETS[preset], preset: Object.hasOwn(PRESETS, preset) ? preset : "" };
  const target = settings as unknown as Record<string, unknown>;
  for (const [key, value] of query) {
    const first = DEFAULTS[key as keyof Settings];
    if (typeof first === "boolean") target[key] = value === "true";
    if (key === "kind" && Object.hasOwn(KINDS, value)) target[key] = value;
    // Links are untrusted, so only valid numbers are taken.
    if (typeof first === "number" && Number(value) >= (key === "full" ? 0 : 0.5)) {
      target[key] = Math.min(Number(value), MOST[key as keyof Settings] ?? 1e13);
    }
  }
  return settings;
}
