import { useState } from "preact/hooks";
import { PerplexityPanel, RulerPanel, SweepPanel } from "./panels";
import { type Results, addFile, noResults } from "./read";

export function EvaluationView() {
  const [results, setResults] = useState(noResults);
  const add = async (files: FileList | null | undefined) => {
    let next: Results = results;
    for (const file of files ?? []) next = addFile(next, file.name, await file.text());
    setResults(next);
  };
  const { ruler, perplexity, sweep, notes } = results;
  const empty = !ruler.length && !perplexity.length && !sweep.length;
  return (
    <>
      <h1>Evaluation</h1>
      <p>Charts of results, from the files that <code>cortado eval ruler --out</code>,{" "}
        <code>eval niah --out</code>, <code>eval ppl --out</code> and <code>sweep</code> write.
        They stay in this tab.</p>
      <Drop add={add} />
      {notes.map((note) => <p key={note} class="problem" role="alert">{note}</p>)}
      {!empty && <button type="button" onClick={() => setResults(noResults())}>Take all away</button>}
      {ruler.length > 0 && <RulerPanel rows={ruler} />}
      {perplexity.length > 0 && <PerplexityPanel rows={perplexity} />}
      {sweep.length > 0 && <SweepPanel rows={sweep} />}
    </>
  );
}

function Drop({ add }: { add: (files: FileList | null | undefined) => void }) {
  const [over, setOver] = useState(false);
  const onDrop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    add(event.dataTransfer?.files);
  };
  const onDragOver = (event: DragEvent) => {
    event.preventDefault();
    setOver(true);
  };
  return (
    <div class={`drop ${over ? "over" : ""}`} onDrop={onDrop} onDragOver={onDragOver}
      onDragLeave={() => setOver(false)}>
      <label>
        Drop files of results here, or choose them:{" "}
        <input type="file" multiple accept=".jsonl,.json,.txt" onChange={(event) => add(event.currentTarget.files)} />
      </label>
    </div>
  );
}
