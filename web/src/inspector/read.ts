// Pure functions on an inspection's data.
import type { Head, Inspection, Slots } from "../api/inspection";

const SIGNS: Record<string, string> = { "\n": "⏎", "\t": "⇥", "\r": "␍" };

// Returns a token's text with visible white space, or its number if it has no text.
export function visible(inspection: Inspection, token: number): string {
  const piece = inspection.pieces[token] ?? "";
  if (!piece) return `#${inspection.tokens[token]}`;
  const shown = piece.replace(/[\n\t\r]/g, (letter) => SIGNS[letter]!);
  return /^ +$/.test(shown) ? "␣".repeat(shown.length) : shown;
}

// Returns the weight that token t gives to token s of its past.
export const weightOf = (head: Head, t: number, s: number): number => head.weights?.[t]?.[s] ?? 0;

export function largest(rows: (number | null)[][]): number {
  let most = 0;
  for (const row of rows) for (const value of row) most = Math.max(most, Math.abs(value ?? 0));
  return most;
}

// Returns the weight that the later of two tokens gives to the earlier one.
export function between(head: Head, at: number, other: number): number {
  return other <= at ? weightOf(head, at, other) : weightOf(head, other, at);
}

export interface Weighed {
  token: number;
  weight: number;
}

function heaviest(all: Weighed[], count: number): Weighed[] {
  return all.filter(({ weight }) => weight !== 0).sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight))
    .slice(0, count);
}

export function readsMost(head: Head, at: number, count: number): Weighed[] {
  const row = head.weights?.[at] ?? [];
  return heaviest(row.map((weight, token) => ({ token, weight: weight ?? 0 })), count);
}

export function rememberedBy(head: Head, at: number, count: number): Weighed[] {
  const later = (head.weights ?? []).slice(at + 1);
  return heaviest(later.map((row, index) => ({ token: at + 1 + index, weight: row[at] ?? 0 })), count);
}

// Returns the number of the memory that holds token s when token t is read; -1: none.
export function placeOf(head: Head, t: number, s: number): number {
  const digit = head.places?.[t]?.[s];
  return digit === undefined || digit === "-" ? -1 : Number(digit);
}

// Returns the memories that hold a token in turn, each with the first token that is read while it does.
export function stays(head: Head, token: number): { place: number; from: number }[] {
  const found: { place: number; from: number }[] = [];
  for (let t = token; t < (head.places?.length ?? 0); ++t) {
    const place = placeOf(head, t, token);
    if (found[found.length - 1]?.place !== place) found.push({ place, from: t });
  }
  return found;
}

export interface Score {
  before: number;
  score: number | null;
  stays: boolean;
}

export function scoresOf(head: Head, token: number): Score[] {
  return (head.decisions ?? []).flatMap(({ before, tokens, scores, stays: kept }) => {
    const index = tokens.indexOf(token);
    return index < 0 ? [] : [{ before, score: scores[index] ?? null, stays: kept[index] ?? false }];
  });
}

// Returns how much of tokens 0 .. t each slot holds after token t: [slot][token].
export function slotContents(slots: Slots, t: number): number[][] {
  const count = slots.write[0]?.length ?? 0;
  const rows = Array.from({ length: count }, () => new Array<number>(t + 1).fill(0));
  for (let slot = 0; slot < count; ++slot) {
    let left = 1;
    let sum = 0;
    for (let s = t; s >= 0; --s) {
      rows[slot]![s] = slots.write[s]![slot]! * left;
      sum += rows[slot]![s]!;
      left *= slots.keep[s]![slot]!;
    }
    if (slots.normalized && sum > 0) rows[slot] = rows[slot]!.map((value) => value / sum);
  }
  return rows;
}

export const latentName = (window: boolean, state: number): string =>
  window ? (state === 0 ? "window" : `latent ${state}`) : `latent ${state + 1}`;
