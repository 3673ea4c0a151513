// State sizes of linear-time layers: the numbers of one layer's state, as `cortado analyze memory` counts them, without the
// position.
export interface Sizes {
  states: number; // heads that have a state
  headSize: number;
  size: number; // the size that can be chosen; its meaning depends on the kind
}

export interface Numbers {
  sums: number; // written and read with every token
  pairs: number; // keys and values, or the last inputs of a convolution: read only
}

interface Kind {
  name: string;
  size?: { label: string; usual: number };
  numbers: (it: Sizes) => Numbers;
  formula: (it: Sizes) => string;
}

const TAPS = 3; // inputs that a convolution of four taps keeps

const latte = ({ states, headSize }: Sizes, latents: number): number => states * latents * (headSize + 2);
const window = ({ states, headSize }: Sizes, tokens: number): number => 2 * states * headSize * tokens;

export const KINDS: Record<string, Kind> = {
  linear: {
    name: "Linear attention: a state",
    numbers: ({ states, headSize }) => ({ sums: states * headSize * (headSize + 1), pairs: 0 }),
    formula: ({ states, headSize: d }) => `${states} heads × (${d} × ${d} + ${d}), a matrix and a sum of keys`,
  },
  gla: {
    name: "GLA: a state",
    numbers: ({ states, headSize }) => ({ sums: states * (headSize / 2) * headSize, pairs: 0 }),
    formula: ({ states, headSize: d }) => `${states} heads × ${d / 2} × ${d}, a matrix with keys half as wide`,
  },
  gated_delta_net: {
    name: "Gated DeltaNet: a state",
    numbers: ({ states, headSize: d }) => ({ sums: states * 0.75 * d * 1.5 * d, pairs: TAPS * 3 * states * d }),
    formula: ({ states, headSize: d }) => `${states} heads × (${0.75 * d} × ${1.5 * d} + ${TAPS} × ${3 * d}), a matrix and `
      + "the convolutions' last inputs",
  },
  mamba2: {
    name: "Mamba-2: a state",
    size: { label: "State size", usual: 128 },
    numbers: ({ states, headSize, size }) => {
      const inner = 2 * states * headSize;
      return { sums: inner * size, pairs: TAPS * (inner + 2 * size) };
    },
    formula: ({ states, headSize, size }) => `${2 * states * headSize} channels × ${size} + ${TAPS} × `
      + `${2 * states * headSize + 2 * size}, the state and the convolution's last inputs`,
  },
  sliding_window: {
    name: "A window of keys and values",
    size: { label: "Window, tokens", usual: 128 },
    numbers: (it) => ({ sums: 0, pairs: window(it, it.size - 1) }),
    formula: ({ states, headSize, size }) => `2 × ${states} heads × ${headSize} × ${size - 1} tokens, and the current one`,
  },
  latte: {
    name: "Latte: latent states",
    size: { label: "Latents per head", usual: 32 },
    numbers: (it) => ({ sums: latte(it, it.size), pairs: 0 }),
    formula: ({ states, headSize, size }) => `${states} heads × ${size} latents × (${headSize} + 2)`,
  },
  macchiato: {
    name: "Macchiato: latent states and a window of 129",
    size: { label: "Latents per head", usual: 32 },
    numbers: (it) => ({ sums: latte(it, it.size) + it.states * it.headSize, pairs: window(it, 128) }),
    formula: ({ states, headSize: d, size }) => `${states} heads × (${size} latents × (${d} + 2) + ${d} + 2 × ${d} × 128 `
      + "tokens)",
  },
  lola: {
    name: "LoLA: a window, chosen pairs and a state",
    size: { label: "Pairs chosen", usual: 64 },
    numbers: (it) => ({
      sums: it.states * 2 * it.headSize * (it.headSize + 1), pairs: window(it, 128 + it.size),
    }),
    formula: ({ states, headSize: d, size }) => `${states} heads × (${2 * d} × (${d} + 1) + 2 × ${d} × (128 + ${size}) `
      + "tokens)",
  },
  blurry_window: {
    name: "Blurry Window: slots",
    size: { label: "Slots", usual: 33 },
    numbers: (it) => ({ sums: window(it, it.size), pairs: 0 }),
    formula: ({ states, headSize, size }) => `2 × ${states} heads × ${headSize} × ${size} slots`,
  },
};
