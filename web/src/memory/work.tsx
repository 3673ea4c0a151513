// Charts the operations of a generated token and of reading a prompt.
import { useState } from "preact/hooks";
import { Chart, type Line } from "../shared/chart";
import { short, tokensOf } from "../shared/format";
import { MOST_TOKENS, type Memory, type Settings, kindOf, promptWork, works } from "./sizes";

export const TOKEN_MARKS = Array.from({ length: 8 }, (_, i) => 10 ** i);
const WORK_MARKS = Array.from({ length: 25 }, (_, i) => 10 ** i);
const LENGTHS = Array.from({ length: 141 }, (_, i) => Math.round(10 ** (i / 20)));

// Linear axes end a little after the chosen length.
export function lengthsOf({ linear, tokens }: Settings): number[] {
  if (!linear) return LENGTHS;
  const most = Math.min(MOST_TOKENS, Math.max(100, 1.25 * tokens));
  return Array.from({ length: 101 }, (_, i) => Math.round((most * i) / 100));
}

const OF = {
  token: {
    title: "generating a token", orders: ["O(n)", "O(1)"],
    at: (work: Memory, tokens: number): number => work.constant + work.perToken * tokens,
  },
  prompt: { title: "reading a prompt", orders: ["O(n²)", "O(n)"], at: promptWork },
};

const PREFIXES = ["", " k", " M", " G", " T", " P", " E", " Z"];

function operations(value: number): string {
  const power = value < 1000 ? 0 : Math.min(PREFIXES.length - 1, Math.floor(Math.log10(value) / 3));
  return `${Number((value / 1000 ** power).toPrecision(3))}${PREFIXES[power]}`;
}

export function Work({ settings }: { settings: Settings }) {
  const [of, setOf] = useState<keyof typeof OF>("token");
  const { title, orders, at } = OF[of];
  const { full, linear, hybrid } = works(settings);
  const { tokens, linear: straight } = settings;
  const curves = [
    { name: `Full attention, ${orders[0]}`, work: full },
    { name: `${kindOf(settings).name.split(":")[0]}, ${orders[1]}`, work: linear },
    { name: `Hybrid, ${settings.full > 0 ? orders[0] : orders[1]}`, work: hybrid },
  ];
  const lines: Line[] = curves.map(({ name, work }) => ({
    name, points: lengthsOf(settings).map((length) => [length, at(work, length)]),
  }));
  const said = curves.map(({ name, work }) => `${name}, ${operations(at(work, tokens))}`).join("; ");
  return (
    <section>
      <h2>Work of {title}</h2>
      <p>Multiplications and additions between tokens. Products with weights are extra, and equal for all.</p>
      <div class="panel-choices">
        <label>
          Work of
          <select value={of} onChange={(event) => setOf(event.currentTarget.value as keyof typeof OF)}>
            {Object.entries(OF).map(([key, { title: words }]) => <option key={key} value={key}>{words}</option>)}
          </select>
        </label>
      </div>
      <Chart label={`Operations of ${title} against tokens. At ${tokensOf(tokens)}: ${said}`} lines={lines} mark={tokens}
        x={{ label: "tokens", show: short, ...(!straight && { log: true, marks: TOKEN_MARKS }) }}
        y={{ label: "operations", show: operations, ...(!straight && { log: true, marks: WORK_MARKS }) }} />
    </section>
  );
}
