// Files of results, as `cortado eval ruler`, `eval niah`, `eval ppl` and `sweep` write them: a JSON object a line.

type Row = Record<string, unknown>;

export interface RulerRow {
  model: string;
  task: string;
  length: number;
  score: number; // 0 to 1
  state: number; // bytes
}

export interface PerplexityRow {
  model: string;
  length: number;
  values: Record<string, number | null>; // null: too large for a number
}

export interface SweepRow {
  name: string; // its settings
  seed: number;
  done: boolean;
  values: Record<string, number>;
  curve: Record<string, number[]>;
}

export interface Results {
  ruler: RulerRow[];
  perplexity: PerplexityRow[];
  sweep: SweepRow[];
  notes: string[]; // what was not understood
}

export const noResults = (): Results => ({ ruler: [], perplexity: [], sweep: [], notes: [] });

const isNumber = (value: unknown): value is number => typeof value === "number" && Number.isFinite(value);

function numbersOf(row: Row): Record<string, number> {
  return Object.fromEntries(Object.entries(row).filter((entry): entry is [string, number] => isNumber(entry[1])));
}

function readRuler(row: Row): RulerRow {
  return {
    model: String(row.model), task: String(row.task), length: Number(row.length),
    // Earlier versions only say whether it was right.
    score: isNumber(row.score) ? row.score : Number(row.correct === true),
    state: isNumber(row.state_bytes) ? row.state_bytes : 0,
  };
}

function readPerplexity(row: Row): PerplexityRow {
  const { length, tokens, seconds, ...values } = numbersOf(row);
  return { model: String(row.model), length: length ?? Number(tokens), values: { ...values, ...secondsOf(seconds) } };
}

const secondsOf = (seconds: number | undefined): Record<string, number> => (seconds === undefined ? {} : { seconds });

// "mixer.mixer": "softmax" -> "softmax"; numbers need their name, "dim 64".
function settingsName(settings: Row): string {
  const parts = Object.entries(settings).map(([key, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return typeof value === "string" ? text : `${key.split(".").pop()} ${text}`;
  });
  return parts.join(", ") || "as planned";
}

function readSweep(row: Row): SweepRow {
  const { seed, ...values } = numbersOf(row);
  const curve = Object.entries((row.curve as Row | undefined) ?? {}).filter(([, list]) => Array.isArray(list));
  return {
    name: settingsName((row.settings as Row | undefined) ?? {}), seed: seed ?? 0, done: row.status === "done", values,
    curve: Object.fromEntries(curve) as Record<string, number[]>,
  };
}

function take(results: Results, row: Row): boolean {
  if ("setting" in row) return true; // what the results depend on
  if ("settings" in row && "status" in row) results.sweep.push(readSweep(row));
  else if ("task" in row && "length" in row) results.ruler.push(readRuler(row));
  else if ("model" in row && "length" in row && "perplexity" in row) results.perplexity.push(readPerplexity(row));
  else return false;
  return true;
}

export function addFile(results: Results, name: string, text: string): Results {
  const next: Results = {
    ruler: [...results.ruler], perplexity: [...results.perplexity], sweep: [...results.sweep],
    notes: [...results.notes],
  };
  const strange: number[] = [];
  text.split("\n").forEach((line, index) => {
    if (!line.trim()) return;
    try {
      if (!take(next, JSON.parse(line) as Row)) strange.push(index + 1);
    } catch {
      strange.push(index + 1); // the last line of a run that is still writing may be half a line
    }
  });
  if (strange.length) next.notes.push(`${name}: not understood: line${strange.length > 1 ? "s" : ""} ${few(strange)}.`);
  return next;
}

const few = (lines: number[]): string =>
  lines.slice(0, 5).join(", ") + (lines.length > 5 ? ` and ${lines.length - 5} more` : "");

// Their means, by a name and a number.
export function meansBy<T>(rows: T[], name: (row: T) => string, at: (row: T) => number,
  value: (row: T) => number | null): Map<string, [number, number | null][]> {
  const sums = new Map<string, Map<number, { sum: number; count: number }>>();
  for (const row of rows) {
    const line = sums.get(name(row)) ?? new Map<number, { sum: number; count: number }>();
    sums.set(name(row), line);
    const cell = line.get(at(row)) ?? { sum: 0, count: 0 };
    line.set(at(row), { sum: cell.sum + (value(row) ?? NaN), count: cell.count + 1 });
  }
  const points = (line: Map<number, { sum: number; count: number }>): [number, number | null][] =>
    [...line].sort(([a], [b]) => a - b).map(([x, { sum, count }]) => [x, Number.isNaN(sum) ? null : sum / count]);
  return new Map([...sums].map(([key, line]) => [key, points(line)]));
}
