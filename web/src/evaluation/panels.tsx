import { useState } from "preact/hooks";
import { Chart, type Line } from "../shared/chart";
import { bytes, plain, short } from "../shared/format";
import { type PerplexityRow, type Plan, type RulerRow, type SweepRow, meansBy, namesOf, words } from "./read";

const MEAN = "mean of the tasks";

function Choice(props: { label: string; value: string; options: string[]; choose: (value: string) => void }) {
  return (
    <label>
      {props.label}
      <select value={props.value} onChange={(event) => props.choose(event.currentTarget.value)}>
        {props.options.map((option) => <option key={option} value={option}>{words(option)}</option>)}
      </select>
    </label>
  );
}

function linesOf(points: Map<string, [number, number | null][]>): Line[] {
  return [...points].map(([name, line]) => ({ name, points: line }));
}

const MOST_MARKS = 12;

// Marks exactly the lengths that occur, if they are few.
function marksOf(lines: Line[]): { marks?: number[] } {
  const xs = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  return xs.length <= MOST_MARKS ? { marks: xs } : {};
}

// Shows the chart's numbers as a table.
function LinesTable({ lines, show }: { lines: Line[]; show: (value: number) => string }) {
  const xs = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  return (
    <details>
      <summary>The numbers</summary>
      <div class="scroll" tabIndex={0} role="region" aria-label="The numbers">
        <table>
          <thead><tr><th scope="col">Name</th>{xs.map((x) => <th key={x} scope="col">{short(x)}</th>)}</tr></thead>
          <tbody>
            {lines.map((line) => {
              const known = new Map(line.points);
              return (
                <tr key={line.name}>
                  <th scope="row">{line.name}</th>
                  {xs.map((x) => <td key={x}>{known.get(x) == null ? "" : show(known.get(x)!)}</td>)}
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </details>
  );
}

// RULER's total: the mean over tasks, whatever their numbers of questions.
function rulerPoints(rows: RulerRow[], task: string): Map<string, [number, number | null][]> {
  const percent = (row: RulerRow): number => 100 * row.score;
  const of = (name: string) =>
    meansBy(rows.filter((row) => row.task === name), (it) => it.model, (it) => it.length, percent);
  if (task !== MEAN) return of(task);
  const tasks = [...new Set(rows.map((row) => row.task))];
  const means = tasks.flatMap((name) =>
    [...of(name)].flatMap(([model, line]) => line.map(([length, value]) => ({ model, length, value }))));
  return meansBy(means, (it) => it.model, (it) => it.length, (it) => it.value);
}

export function RulerPanel({ rows }: { rows: RulerRow[] }) {
  const tasks = [...new Set(rows.map((row) => row.task))].sort();
  const options = tasks.length > 1 ? [MEAN, ...tasks] : tasks;
  const [chosen, setChosen] = useState("");
  const task = options.includes(chosen) ? chosen : options[0]!;
  const lines = linesOf(rulerPoints(rows, task));
  const show = (value: number): string => `${value.toFixed(1)} %`;
  return (
    <section>
      <h2>RULER: retrieval from long texts</h2>
      <div class="panel-choices"><Choice label="Task" value={task} options={options} choose={setChosen} /></div>
      <Chart label={`Share of correct answers by length, ${task}`} lines={lines}
        x={{ label: "length, tokens", log: true, show: short, ...marksOf(lines) }}
        y={{ label: "right", show, range: [0, 100] }} />
      <LinesTable lines={lines} show={show} />
    </section>
  );
}

export function PerplexityPanel({ rows }: { rows: PerplexityRow[] }) {
  const options = [...new Set(rows.flatMap((row) => Object.keys(row.values)))];
  const [chosen, setChosen] = useState("perplexity");
  const value = options.includes(chosen) ? chosen : options[0]!;
  const lines = linesOf(meansBy(rows, (it) => it.model, (it) => it.length, (it) => it.values[value] ?? null));
  return (
    <section>
      <h2>Perplexity against context</h2>
      <div class="panel-choices"><Choice label="Value" value={value} options={options} choose={setChosen} /></div>
      <Chart label={`${words(value)} against context length`} lines={lines}
        x={{ label: "context, tokens", log: true, show: short, ...marksOf(lines) }}
        y={{ label: words(value), log: true, show: plain }} />
      <LinesTable lines={lines} show={plain} />
    </section>
  );
}

type Names = Map<SweepRow, string>;

export function SweepPanel({ rows, plans }: { rows: SweepRow[]; plans: Plan[] }) {
  const failed = rows.filter((row) => !row.done).length;
  const done = rows.filter((row) => row.done);
  const names = namesOf(done);
  const metric = plans[0]?.metric ?? "validation_loss";
  return (
    <section>
      <h2>Sweep</h2>
      <p>{done.length} runs have ended well{failed ? `, ${failed} have not` : ""}.</p>
      {plans.map(({ metric: judge, scale, command }) => (
        <p key={command} class="soft">Judged by {words(judge)}, at scale {scale}{command && <>: <code>{command}</code></>}.</p>
      ))}
      <Curves key={`curves ${metric}`} {...{ rows: done, names, metric }} />
      <Costs key={`costs ${metric}`} {...{ rows: done, names, metric }} />
    </section>
  );
}

// Averages a setting over its seeds.
function curvePoints(rows: SweepRow[], names: Names, value: string): Map<string, [number, number | null][]> {
  const points = rows.flatMap((row) => (row.curve[value] ?? [])
    .map((it, index) => ({ name: names.get(row)!, step: row.curve.step?.[index] ?? index, it })));
  return meansBy(points, (it) => it.name, (it) => it.step, (it) => it.it);
}

function Curves({ rows, names, metric }: { rows: SweepRow[]; names: Names; metric: string }) {
  const options = [...new Set(rows.flatMap((row) => Object.keys(row.curve)))].filter((key) => key !== "step");
  const [chosen, setChosen] = useState(metric);
  const value = options.includes(chosen) ? chosen : options[0];
  if (!value) return null;
  const lines = linesOf(curvePoints(rows, names, value));
  return (
    <>
      <div class="panel-choices"><Choice label="Curve of" value={value} options={options} choose={setChosen} /></div>
      <Chart label={`${words(value)} against step, means of the seeds`} lines={lines}
        x={{ label: "step", show: short }} y={{ label: words(value), show: plain }} />
      <LinesTable lines={lines} show={plain} />
    </>
  );
}

function Costs({ rows, names, metric }: { rows: SweepRow[]; names: Names; metric: string }) {
  const options = [...new Set(rows.flatMap((row) => Object.keys(row.values)))];
  const [xKey, setX] = useState("state_bytes");
  const [yKey, setY] = useState(metric);
  const x = options.includes(xKey) ? xKey : options[0];
  const y = options.includes(yKey) ? yKey : options[0];
  if (!x || !y) return null;
  const lines: Line[] = [...new Set(names.values())].map((name) => ({
    name, scattered: true,
    points: rows.filter((row) => names.get(row) === name && x in row.values && y in row.values)
      .map((row): [number, number] => [row.values[x]!, row.values[y]!]),
  }));
  const axis = (key: string, show: (value: number) => string) =>
    (key.endsWith("bytes") ? { label: words(key), show: bytes, binary: true } : { label: words(key), show });
  return (
    <>
      <div class="panel-choices">
        <Choice label="Across" value={x} options={options} choose={setX} />
        <Choice label="Up" value={y} options={options} choose={setY} />
      </div>
      <Chart label={`${words(y)} against ${words(x)}, a point a run`} lines={lines} x={axis(x, short)}
        y={axis(y, plain)} />
    </>
  );
}
