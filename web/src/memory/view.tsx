import { useEffect, useState } from "preact/hooks";
import { status } from "../api/status";
import type { ModelEntry } from "../api/types";
import { Chart, type Line } from "../shared/chart";
import { bytes, short, tokensOf } from "../shared/format";
import { useSignal } from "../shared/store";
import { Controls } from "./controls";
import { Quiz } from "./quiz";
import { Formulas } from "./formulas";
import {
  MOST_TOKENS, type Memory, type Settings, bytesAt, fromQuery, kindOf, longest, memories, orderOf, toQuery,
} from "./sizes";
import { TOKEN_MARKS, Work, lengthsOf } from "./work";

const GIB = 2 ** 30;
const LIMITS = [8, 24, 80];
// Powers of 32, which have round names.
const BYTE_MARKS = Array.from({ length: 11 }, (_, i) => 2 ** (5 * i));
const EXAMPLES = [
  { name: "a book of a million tokens", query: "tokens=1000000" },
  { name: "64 conversations at once with a model of 70B", query: "preset=Llama+3.1+70B&tokens=32768&batch=64&full=10" },
  { name: "what LoLA keeps", query: "kind=lola" },
  { name: "straight lines: the same without logarithms", query: "linear=true" },
];

interface Curve {
  name: string;
  memory: Memory;
}

function curvesOf(settings: Settings): Curve[] {
  const { full, linear, hybrid } = memories(settings);
  const part = `${Math.min(settings.full, settings.layers)} of ${settings.layers} layers`;
  return [
    { name: `Full attention: keys and values, ${orderOf(full)}`, memory: full },
    { name: `${kindOf(settings).name}, ${orderOf(linear)}`, memory: linear },
    { name: `Hybrid: keys and values in ${part}, ${orderOf(hybrid)}`, memory: hybrid },
  ];
}

// A served model's real bytes: of all tokens' keys and values and, if it differs, of its state.
function servedCurves(model: ModelEntry, batch: number): Curve[] {
  const { state_constant_bytes: constant, state_bytes_per_token: perToken, kv_cache_bytes_per_token: cache } = model;
  if (constant === undefined || perToken === undefined || cache === undefined) return [];
  const keys = { name: `${model.id}, served here: keys and values`, memory: { perToken: batch * cache, constant: 0 } };
  if (perToken >= cache) return [keys];
  const state = { perToken: batch * perToken, constant: batch * constant };
  return [keys, { name: `${model.id}, served here: its state, ${orderOf(state)}`, memory: state }];
}

// Merges equal curves, e.g. the keys of a model with two memories.
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
      <p>What a sequence takes in memory as it grows: full attention keeps the keys and values of every token, linear
        attention a state of one size. For example: {EXAMPLES.map(({ name, query }, index) => (
          <>{index > 0 && "; "}<a href={`#/memory?${query}`}>{name}</a></>
        ))}.</p>
      <div class="halves">
        <div><Controls settings={settings} change={change} /></div>
        <div>
          <MemoryChart curves={curves} settings={settings} />
          <Table curves={curves} tokens={settings.tokens} />
          <Formulas settings={settings} />
          <Work settings={settings} />
        </div>
      </div>
      <Quiz />
    </>
  );
}

function MemoryChart({ curves, settings }: { curves: Curve[]; settings: Settings }) {
  const { tokens, linear } = settings;
  const lengths = lengthsOf(settings);
  const lines: Line[] = curves.map(({ name, memory }, index) => ({
    name, dashed: index > 2, points: lengths.map((length) => [length, bytesAt(memory, length)]),
  }));
  const said = curves.map(({ name, memory }) => `${name}, ${bytes(bytesAt(memory, tokens))}`).join("; ");
  return (
    <Chart label={`Bytes against tokens. At ${tokensOf(tokens)}: ${said}`} lines={lines} mark={tokens}
      x={{ label: "tokens", show: short, ...(!linear && { log: true, marks: TOKEN_MARKS }) }}
      y={{ label: "memory", show: bytes, ...(linear ? { binary: true } : { log: true, marks: BYTE_MARKS }) }}
      limits={LIMITS.map((limit) => ({ at: limit * GIB, name: `${limit} GiB` }))} />
  );
}

function fits(tokens: number): string {
  if (tokens === 0) return "does not fit";
  if (tokens === Infinity) return "any length";
  return tokens > MOST_TOKENS ? `more than ${short(MOST_TOKENS)} tokens` : tokensOf(tokens);
}

function Table({ curves, tokens }: { curves: Curve[]; tokens: number }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Numbers">
      <table>
        <thead>
          <tr>
            <th scope="col">Memory</th>
            <th scope="col">at {tokensOf(tokens)}</th>
            {LIMITS.map((limit) => <th key={limit} scope="col">fits {limit} GiB up to</th>)}
          </tr>
        </thead>
        <tbody>
          {curves.map(({ name, memory }) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td>{bytes(bytesAt(memory, tokens))}</td>
              {LIMITS.map((limit) => <td key={limit}>{fits(longest(memory, limit * GIB))}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
