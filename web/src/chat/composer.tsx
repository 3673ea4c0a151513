import { useRef, useState } from "preact/hooks";
import { status } from "../api/status";
import { bytes } from "../shared/format";
import { ask, isRunning, stop } from "./run";
import { type Conversation, type TextFile, shownPath } from "./tree";

// The server takes larger requests, but localStorage holds about this much in total.
const MOST_BYTES = 4 << 20;

async function readText(file: File): Promise<TextFile> {
  if (file.size > MOST_BYTES) throw new Error(`${file.name} has ${bytes(file.size)}; at most ${bytes(MOST_BYTES)}`);
  const text = new TextDecoder("utf-8", { fatal: true });
  try {
    return { name: file.name, text: text.decode(await file.arrayBuffer()) };
  } catch {
    throw new Error(`${file.name} is not text in UTF-8`);
  }
}

function useFiles() {
  const [files, setFiles] = useState<TextFile[]>([]);
  const [problem, setProblem] = useState("");
  const add = async (chosen: FileList | undefined | null) => {
    setProblem("");
    for (const file of chosen ?? []) {
      await readText(file).then((it) => setFiles((all) => [...all, it]), (error: Error) => setProblem(error.message));
    }
  };
  return { files, setFiles, problem, add };
}

export function Composer({ conversation }: { conversation: Conversation }) {
  const [text, setText] = useState("");
  const { files, setFiles, problem, add } = useFiles();
  const path = shownPath(conversation);
  const last = path[path.length - 1];
  const busy = last !== undefined && isRunning(last);
  const ready = !busy && conversation.models.length > 0 && (text.trim() !== "" || files.length > 0);
  const send = (event?: Event) => {
    event?.preventDefault();
    if (!ready) return;
    ask(conversation, last?.id ?? "", text, files);
    setText("");
    setFiles([]);
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
    if (event.key === "Escape" && busy) stop(last);
  };
  const onDrop = (event: DragEvent) => {
    event.preventDefault();
    void add(event.dataTransfer?.files);
  };
  return (
    <form class="composer" onSubmit={send} onDrop={onDrop} onDragOver={(event) => event.preventDefault()}>
      <Chips files={files} remove={(index) => setFiles(files.filter((_, i) => i !== index))} />
      {problem && <p class="problem" role="alert">{problem}</p>}
      <textarea id="prompt" aria-label="Your turn" rows={3} value={text} placeholder={hint()} onKeyDown={onKey}
        onInput={(event) => setText(event.currentTarget.value)} />
      <div class="row">
        <FileButton add={add} />
        <span class="spring" />
        {busy
          ? <button key="stop" type="button" class="main" onClick={() => stop(last)}>Stop</button>
          : <button key="send" type="submit" class="main" disabled={!ready}>Send</button>}
      </div>
    </form>
  );
}

const hint = (): string =>
  status.state === "gone" ? "The server does not answer" : "Enter sends, Shift+Enter begins a line, Escape stops";

function FileButton({ add }: { add: (files: FileList | null) => void }) {
  const input = useRef<HTMLInputElement>(null);
  const onChange = () => {
    add(input.current!.files);
    input.current!.value = "";
  };
  return (
    <>
      <input ref={input} type="file" class="hidden" tabIndex={-1} aria-hidden="true" multiple
        accept="text/*,.md,.json,.jsonl,.csv,.log,.py,.cpp,.h" onChange={onChange} />
      <button type="button" onClick={() => input.current!.click()}>Add a text file</button>
    </>
  );
}

function Chips({ files, remove }: { files: TextFile[]; remove: (index: number) => void }) {
  if (!files.length) return null;
  return (
    <ul class="chips" aria-label="Files">
      {files.map((file, index) => (
        <li key={index}>
          {file.name}, {bytes(new Blob([file.text]).size)}
          <button type="button" class="icon" aria-label={`Leave ${file.name} out`}
            onClick={() => remove(index)}>×</button>
        </li>
      ))}
    </ul>
  );
}
