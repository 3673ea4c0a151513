import { useEffect, useState } from "preact/hooks";
import { status } from "../api/status";
import { ENTRY_TOKENS, type ModelEntry } from "../api/types";
import { Chart, type Line } from "../shared/chart";
import { bytes, short, withCommas } from "../shared/format";
import { useSignal } from "../shared/store";
import { Controls } from "./controls";
import { Quiz } from "./quiz";
import { MOST_TOKENS, type Memory, type Settings, bytesAt, fromQuery, longest, memories, toQuery } from "./sizes";

const GB = 2 ** 30;
const LIMITS = [8, 24, 80];
// Powers of two that have round names, and of ten.
const BYTE_MARKS = Array.from({ length: 11 }, (_, i) => 2 ** (5 * i));
const TOKEN_MARKS = Array.from({ length: 8 }, (_, i) => 10 ** i);
const LENGTHS = Array.from({ length: 141 }, (_, i) => Math.round(10 ** (i / 20)));

interface Curve {
  name: string;
  memory: Memory;
}

function curvesOf(settings: Settings): Curve[] {
  const { full, linear, hybrid } = memories(settings);
  const part = `${Math.min(settings.full, settings.layers)} of ${settings.layers} layers`;
  return [
    { name: "Full attention: keys and values", memory: full },
    { name: "Linear attention: a state", memory: linear },
    { name: `Hybrid: keys and values in ${part}`, memory: hybrid },
  ];
}

// The real numbers of a served model. What it keeps is known after 4,096 tokens: as much as keys and values of all, and
// it grows with them; less, and it is taken to stay.
function servedCurves(model: ModelEntry, batch: number): Curve[] {
  const { state_bytes: state, kv_cache_bytes: cache } = model;
  if (!state || !cache) return [];
  const growing = (value: number): Memory => ({ perToken: (batch * value) / ENTRY_TOKENS, constant: 0 });
  const keys = { name: `${model.id}, served here: keys and values`, memory: growing(cache) };
  const all = state >= 0.95 * cache;
  if (all) return [keys];
  return [keys, { name: `${model.id}, served here: its state`, memory: { perToken: 0, constant: batch * state } }];
}

// One model with two memories has the same keys and values twice.
function merged(curves: Curve[]): Curve[] {
  const known = new Map<string, Curve>();
  for (const curve of curves) {
    const key = JSON.stringify(curve.memory);
    const other = known.get(key);
    known.set(key, other ? { ...curve, name: `${other.name.split(",")[0]} and ${curve.name}` } : curve);
  }
  return [...known.values()];
}

function settingsOfHash(): Settings {
  return fromQuery(location.hash.split("?")[1] ?? "");
}

function useSettings(): [Settings, (part: Partial<Settings>) => void] {
  const [settings, setSettings] = useState(settingsOfHash);
  useEffect(() => {
    const follow = () => location.hash.startsWith("#/memory") && setSettings(settingsOfHash());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  const change = (part: Partial<Settings>) => {
    const next = { ...settings, ...part };
    setSettings(next);
    const query = toQuery(next);
    history.replaceState(null, "", `#/memory${query && `?${query}`}`);
  };
  return [settings, change];
}

export function MemoryView() {
  useSignal(status.changed);
  const [settings, change] = useSettings();
  const served = merged(status.models.flatMap((model) => servedCurves(model, settings.batch)));
  const curves = [...curvesOf(settings), ...served];
  return (
    <>
      <h1>Memory of a sequence</h1>
      <p>Full attention keeps the keys and values of every token: memory grows with the length. Linear attention keeps a
        state of one size.</p>
      <div class="halves">
        <div><Controls settings={settings} change={change} /></div>
        <div>
          <MemoryChart curves={curves} tokens={settings.tokens} />
          <Table curves={curves} tokens={settings.tokens} />
          <p class="soft">1 GB is 2<sup>30</sup> bytes. A linear layer's state: for each head that has keys of its own,
            a matrix of head size × head size and a sum of keys. {settings.weights
              ? "Weights are counted, each of as many bytes as a number of the cache." : "Weights are not counted."}</p>
        </div>
      </div>
      <Quiz />
    </>
  );
}

function MemoryChart({ curves, tokens }: { curves: Curve[]; tokens: number }) {
  const lines: Line[] = curves.map(({ name, memory }, index) => ({
    name, dashed: index > 2, points: LENGTHS.map((length) => [length, bytesAt(memory, length)]),
  }));
  const said = curves.map(({ name, memory }) => `${name}, ${bytes(bytesAt(memory, tokens))}`).join("; ");
  return (
    <Chart label={`Bytes against tokens. At ${withCommas(tokens)} tokens: ${said}`} lines={lines} mark={tokens}
      x={{ label: "tokens", log: true, show: short, marks: TOKEN_MARKS }}
      y={{ label: "memory", log: true, show: bytes, marks: BYTE_MARKS }}
      limits={LIMITS.map((limit) => ({ at: limit * GB, name: `${limit} GB` }))} />
  );
}

function fits(tokens: number): string {
  if (tokens === 0) return "never fits";
  return tokens > MOST_TOKENS ? (tokens === Infinity ? "never runs out" : `beyond ${short(MOST_TOKENS)}`)
    : `after ${withCommas(tokens)}`;
}

function Table({ curves, tokens }: { curves: Curve[]; tokens: number }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Numbers">
      <table>
        <thead>
          <tr>
            <th scope="col">Memory</th>
            <th scope="col">at {withCommas(tokens)} tokens</th>
            {LIMITS.map((limit) => <th key={limit} scope="col">out of {limit} GB</th>)}
          </tr>
        </thead>
        <tbody>
          {curves.map(({ name, memory }) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td>{bytes(bytesAt(memory, tokens))}</td>
              {LIMITS.map((limit) => <td key={limit}>{fits(longest(memory, limit * GB))}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
