// What the page makes of an inspection. Pure; nothing is drawn or sent here.
import type { Head, Inspection, Slots } from "../api/inspection";

const SIGNS: Record<string, string> = { "\n": "⏎", "\t": "⇥", "\r": "␍" };

// A token's text with signs for what cannot be seen; its number where it has no text.
export function visible(inspection: Inspection, token: number): string {
  const piece = inspection.pieces[token] ?? "";
  if (!piece) return `#${inspection.tokens[token]}`;
  const shown = piece.replace(/[\n\t\r]/g, (letter) => SIGNS[letter]!);
  return /^ +$/.test(shown) ? "␣".repeat(shown.length) : shown;
}

// The weight that token t gives to token s of its past.
export const weightOf = (head: Head, t: number, s: number): number => head.weights?.[t]?.[s] ?? 0;

export function largest(rows: (number | null)[][]): number {
  let most = 0;
  for (const row of rows) for (const value of row) most = Math.max(most, Math.abs(value ?? 0));
  return most;
}

// What token `at` and another one have to do with each other: the weight that the later gives to the earlier.
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

// The number of the memory that holds token s when token t is read; -1: none.
export function placeOf(head: Head, t: number, s: number): number {
  const digit = head.places?.[t]?.[s];
  return digit === undefined || digit === "-" ? -1 : Number(digit);
}

// Where a token has been from when it was read to the end: [memory, first token that was read then].
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

// What each slot holds of tokens 0 .. t after token t: a row a slot.
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
