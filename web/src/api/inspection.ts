// Request and reply of /v1/inspect.
import type { Message } from "./types";

export interface Asked {
  model: string;
  prompt?: string;
  messages?: Message[];
  layers: number[];
  heads: number[];
}

export interface Decision {
  before: number; // the decision was made before this token
  tokens: number[];
  scores: (number | null)[];
  stays: boolean[];
}

export interface Slots {
  normalized: boolean;
  write: number[][]; // [token][slot]
  keep: number[][];
  read: number[][];
}

export interface Gates {
  norm: number[];
  decay: number[];
  least: number[];
  most: number[];
}

export interface Head {
  head: number;
  weights?: (number | null)[][]; // row t: what token t gives to 0 .. t
  places?: string[]; // row t: a digit for each token of 0 .. t, "-" for none
  decisions?: Decision[];
  latents?: { window: boolean; p: number[][] }; // [token][state]
  slots?: Slots;
  gates?: Gates;
}

export interface Layer {
  layer: number;
  mixer: string;
  head_count: number;
  same_for_channels?: boolean;
  no_weights?: string;
  memories?: string[];
  heads: Head[];
}

export interface Inspection {
  model: string;
  tokens: number[];
  pieces: string[];
  model_layers: { mixer: string; heads: number }[];
  layers: Layer[];
}
