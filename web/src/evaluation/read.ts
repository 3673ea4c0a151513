// Files of results, as `cortado eval ruler`, `eval niah`, `eval ppl` and `sweep` write them: JSON lines. A sweep's
// sweep.json has its plan.

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
  id: string;
  settings: Record<string, unknown>;
  seed: number;
  done: boolean;
  values: Record<string, number>;
  curve: Record<string, number[]>;
}

export interface Plan {
  metric: string;
  scale: string;
  command: string;
}

export interface Results {
  ruler: RulerRow[];
  perplexity: PerplexityRow[];
  sweep: SweepRow[];
  plans: Plan[]; // of sweeps
  seen: Set<string>; // lines read: a file may be chosen twice
  notes: string[]; // problems with files
}

export const noResults = (): Results =>
  ({ ruler: [], perplexity: [], sweep: [], plans: [], seen: new Set(), notes: [] });

const isNumber = (value: unknown): value is number => typeof value === "number" && Number.isFinite(value);

function numbersOf(row: Row): Record<string, number> {
  return Object.fromEntries(Object.entries(row).filter((entry): entry is [string, number] => isNumber(entry[1])));
}

function readRuler(row: Row): RulerRow {
  return {
    model: String(row.model), task: String(row.task), length: Number(row.length),
    // Earlier versions only wrote whether the answer was right.
    score: isNumber(row.score) ? row.score : Number(row.correct === true),
    state: isNumber(row.state_bytes) ? row.state_bytes : 0,
  };
}

function readPerplexity(row: Row): PerplexityRow {
  const { length, tokens, seconds, ...values } = numbersOf(row);
  return { model: String(row.model), length: length ?? Number(tokens), values: { ...values, ...secondsOf(seconds) } };
}

const secondsOf = (seconds: number | undefined): Record<string, number> => (seconds === undefined ? {} : { seconds });

export const words = (key: string): string => key.replace(/_/g, " ");

// Keys whose string values need no label.
const SPEAKING = ["mixer", "name", "step", "dtype"];

// "mixer.mixer": "sliding_window" -> "sliding window", "mixer.window": 129 -> "window 129", "decay": false -> "no decay".
function settingWords(key: string, value: unknown): string {
  const name = words(key.replace(/^(mixer|training)\./, "").replace(/\./g, " "));
  if (Array.isArray(value)) return value.map((it) => settingWords("", it)).join(" + ");
  if (value !== null && typeof value === "object") {
    const { repeat, ...rest } = value as Row;
    const inner = Object.entries(rest).map(([inside, it]) => settingWords(inside, it)).join(", ");
    return repeat === undefined ? inner : `${String(repeat)} × ${inner}`;
  }
  if (typeof value === "string") return SPEAKING.includes(name) ? words(value) : `${words(value)} ${name}`;
  if (typeof value === "boolean") return value ? name : `no ${name}`;
  return `${name} ${String(value)}`;
}

// A run's label: its own name if it has one, and the settings in which the runs differ.
export function namesOf(rows: SweepRow[]): Map<SweepRow, string> {
  const same = (key: string): boolean => new Set(rows.map(({ settings }) => JSON.stringify(settings[key]))).size === 1;
  const several = new Set(rows.map(({ settings }) => JSON.stringify(settings))).size > 1;
  const nameOf = ({ settings }: SweepRow): string => Object.entries(settings)
    .filter(([key, value]) => !(several && same(key)) && !("name" in settings && typeof value === "object"))
    .map(([key, value]) => settingWords(key, value)).join(", ");
  return new Map(rows.map((row) => [row, nameOf(row) || "as planned"]));
}

function readSweep(row: Row): SweepRow {
  const { seed, ...values } = numbersOf(row);
  const curve = Object.entries((row.curve as Row | undefined) ?? {}).filter(([, list]) => Array.isArray(list));
  return {
    id: String(row.id ?? ""), settings: row.settings as Row, seed: seed ?? 0, done: row.status === "done", values,
    curve: Object.fromEntries(curve) as Record<string, number[]>,
  };
}

// A repeated run replaces its result.
function takeSweep(results: Results, row: SweepRow): void {
  const at = row.id ? results.sweep.findIndex(({ id }) => id === row.id) : -1;
  if (at < 0) results.sweep.push(row);
  else results.sweep[at] = row;
}

function take(results: Results, row: Row): boolean {
  if ("setting" in row) return true; // the run's settings; not charted
  if ("settings" in row && "status" in row) takeSweep(results, readSweep(row));
  else if ("task" in row && "length" in row) results.ruler.push(readRuler(row));
  else if ("model" in row && "length" in row && "perplexity" in row) results.perplexity.push(readPerplexity(row));
  else return false;
  return true;
}

function parsed(text: string): Row | null {
  try {
    return JSON.parse(text) as Row | null;
  } catch {
    return null;
  }
}

// Reads a file with one JSON object; false if it has none.
function takeWhole(results: Results, name: string, text: string): boolean {
  const json = parsed(text);
  if (json === null || typeof json !== "object") return false;
  if ("base" in json && typeof json.metric === "string") {
    const plan = { metric: json.metric, scale: String(json.scale ?? ""), command: String(json.command ?? "") };
    if (!results.plans.some((it) => JSON.stringify(it) === JSON.stringify(plan))) results.plans.push(plan);
    if (!results.sweep.length) results.notes.push(`${name} says what a sweep was; its results.jsonl has the results.`);
    return true;
  }
  if (!("sweep" in json && "rows" in json)) return false;
  results.notes.push(`${name} is a summary; the results.jsonl beside it is drawn.`);
  return true;
}

export function addFile(results: Results, name: string, text: string): Results {
  const next: Results = {
    ruler: [...results.ruler], perplexity: [...results.perplexity], sweep: [...results.sweep],
    plans: [...results.plans], seen: new Set(results.seen), notes: [...results.notes],
  };
  if (takeWhole(next, name, text)) return next;
  const strange: number[] = [];
  text.split("\n").forEach((line, index) => {
    if (!line.trim() || next.seen.has(line)) return;
    try {
      if (take(next, JSON.parse(line) as Row)) next.seen.add(line);
      else strange.push(index + 1);
    } catch {
      strange.push(index + 1); // the last line of a run that is still writing may be half a line
    }
  });
  if (strange.length) next.notes.push(`${name}: not understood: line${strange.length > 1 ? "s" : ""} ${few(strange)}.`);
  return next;
}

const few = (lines: number[]): string =>
  lines.slice(0, 5).join(", ") + (lines.length > 5 ? ` and ${lines.length - 5} more` : "");

// Returns means by name and by number.
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
