import { useState } from "preact/hooks";
import exampleResults from "../../../experiments/results/cortado-macchiato-gap/results.jsonl";
import examplePlan from "../../../experiments/results/cortado-macchiato-gap/sweep.json";
import { PerplexityPanel, RulerPanel, SweepPanel } from "./panels";
import { type Results, addFile, noResults } from "./read";

// Results that the documents also show.
const example = (): Results =>
  addFile(addFile(noResults(), "results.jsonl", exampleResults), "sweep.json", JSON.stringify(examplePlan));

// Reads plans after results, whatever the order of the choice.
const inOrder = (files: FileList): File[] => [...files].sort((a, b) => Number(/^sweep.*\.json$/.test(a.name))
  - Number(/^sweep.*\.json$/.test(b.name)));

export function EvaluationView() {
  const [results, setResults] = useState(noResults);
  const add = async (files: FileList | null | undefined) => {
    let next: Results = { ...results, notes: [] };
    for (const file of files ? inOrder(files) : []) {
      const text = await file.text().catch(() => null);
      if (text === null) next.notes.push(`${file.name} cannot be read.`);
      else next = addFile(next, file.name, text);
    }
    setResults(next);
  };
  const { ruler, perplexity, sweep, plans, notes } = results;
  const empty = !ruler.length && !perplexity.length && !sweep.length;
  return (
    <>
      <h1>Evaluation</h1>
      <p>Charts of what was measured, from the files that <code>cortado eval ruler --out</code>,{" "}
        <code>eval niah --out</code>, <code>eval ppl --out</code> and <code>sweep</code> (<code>results.jsonl</code> and{" "}
        <code>sweep.json</code>) write. They stay in this tab.</p>
      <Drop add={add} />
      {notes.map((note) => <p key={note} class="problem" role="alert">{note}</p>)}
      {empty ? <button type="button" onClick={() => setResults(example())}>Show an example: softmax beside linear time</button>
        : <button type="button" onClick={() => setResults(noResults())}>Clear</button>}
      {ruler.length > 0 && <RulerPanel rows={ruler} />}
      {perplexity.length > 0 && <PerplexityPanel rows={perplexity} />}
      {sweep.length > 0 && <SweepPanel rows={sweep} plans={plans} />}
    </>
  );
}

function Drop({ add }: { add: (files: FileList | null | undefined) => Promise<void> }) {
  const [over, setOver] = useState(false);
  const onDrop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    void add(event.dataTransfer?.files);
  };
  const onDragOver = (event: DragEvent) => {
    event.preventDefault();
    setOver(true);
  };
  // Clears the input, so that the same file can be chosen again.
  const onChange = async (input: HTMLInputElement) => {
    await add(input.files);
    input.value = "";
  };
  return (
    <div class={`drop ${over ? "over" : ""}`} onDrop={onDrop} onDragOver={onDragOver}
      onDragLeave={() => setOver(false)}>
      <label>
        Drop files of results here, or choose them:{" "}
        <input type="file" multiple accept=".jsonl,.json,.txt" onChange={(event) => void onChange(event.currentTarget)} />
      </label>
    </div>
  );
}
