import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Progress } from "../api/types";
import { bytes, withCommas } from "../shared/format";
import { openConversation } from "../inspector/store";
import { Markdown } from "../shared/markdown";
import { type SequenceMemory, memoryOf, rememberedOf, speedOf } from "./meter";
import { ask, askAgain, goOn, isRunning } from "./run";
import { touch } from "./store";
import {
  type Answer, type Conversation, type Turn, branchAfter, canGoOn, childrenOf, isOpen, messagesFor, show,
} from "./tree";

export function TurnView({ conversation, turn }: { conversation: Conversation; turn: Turn }) {
  const busy = isRunning(turn);
  const memories = turn.answers.map(memoryOf);
  const most = Math.max(1, ...memories.flatMap((it) => (it ? [it.used, it.full] : [])));
  const branch = () => {
    branchAfter(conversation, turn);
    touch(conversation);
    document.getElementById("prompt")?.focus();
  };
  return (
    <section class="turn" aria-label="Turn">
      <Asked conversation={conversation} turn={turn} busy={busy} />
      <div class={`answers columns-${turn.answers.length}`}>
        {turn.answers.map((answer, column) => (
          <AnswerView key={column} answer={answer} memory={memories[column]!} most={most}
            goOn={() => goOn(conversation, turn, column)} />
        ))}
      </div>
      <div class="row actions">
        <button type="button" disabled={busy} onClick={() => askAgain(conversation, turn)}>Answer again</button>
        <button type="button" disabled={busy} onClick={branch}>Branch here</button>
        <button type="button" disabled={busy} onClick={() => look(conversation, turn)}>Inspect</button>
      </div>
    </section>
  );
}

// Inspects the conversation up to this turn's answer, as the model of the first column reads it.
function look(conversation: Conversation, turn: Turn): void {
  const answer = turn.answers[0];
  const messages = messagesFor(conversation, turn, 0, answer?.system ?? conversation.system);
  if (answer?.text) messages.push({ role: "assistant", content: answer.text });
  openConversation(answer?.model ?? conversation.models[0] ?? "", messages);
}

// ‹ 2 of 3 ›: chooses among the turns with the same past.
function Branches({ conversation, turns, shown }: { conversation: Conversation; turns: Turn[]; shown: Turn }) {
  const index = turns.indexOf(shown);
  const go = (to: number) => {
    show(conversation, turns[to]!);
    touch(conversation);
  };
  return (
    <span class="branches" role="group" aria-label="Branches">
      <button type="button" class="icon" aria-label="The branch before" disabled={index <= 0}
        onClick={() => go(index - 1)}>‹</button>
      <span>{index + 1} of {turns.length}</span>
      <button type="button" class="icon" aria-label="The next branch" disabled={index >= turns.length - 1}
        onClick={() => go(index + 1)}>›</button>
    </span>
  );
}

function Asked({ conversation, turn, busy }: { conversation: Conversation; turn: Turn; busy: boolean }) {
  const [editing, setEditing] = useState(false);
  const siblings = childrenOf(conversation, turn.parent);
  const finish = (text: string | null) => {
    setEditing(false);
    if (text !== null) ask(conversation, turn.parent, text, turn.files);
  };
  return (
    <div class="asked">
      <div class="row">
        <h2>You</h2>
        {siblings.length > 1 && <Branches conversation={conversation} turns={siblings} shown={turn} />}
        <button type="button" disabled={busy || editing} onClick={() => setEditing(true)}>Edit</button>
      </div>
      {turn.files.map((file, index) => (
        <details key={index}>
          <summary>{file.name}, {bytes(new Blob([file.text]).size)}</summary>
          <pre tabIndex={0}>{file.text.slice(0, 20000)}{file.text.length > 20000 ? "\n…" : ""}</pre>
        </details>
      ))}
      {editing ? <Editor text={turn.text} finish={finish} /> : <p class="words">{turn.text}</p>}
    </div>
  );
}

function Editor({ text, finish }: { text: string; finish: (text: string | null) => void }) {
  const [value, setValue] = useState(text);
  const area = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => area.current?.focus(), []);
  const onKey = (event: KeyboardEvent) => {
    if (event.key === "Escape") finish(null);
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) finish(value);
  };
  return (
    <div class="editor">
      <textarea ref={area} aria-label="Edit your turn" rows={Math.min(12, value.split("\n").length + 1)} value={value}
        onInput={(event) => setValue(event.currentTarget.value)} onKeyDown={onKey} />
      <div class="row">
        <button type="button" class="main" disabled={!value.trim()} onClick={() => finish(value)}>Ask this</button>
        <button type="button" onClick={() => finish(null)}>Leave it</button>
      </div>
    </div>
  );
}

function waitingWords({ progress, text }: Answer): string {
  if (!progress) return "Waiting for the server…";
  const { processed, total } = progress;
  if (processed >= total) return text ? "Going on…" : "Beginning…";
  return `Reading: ${withCommas(processed)} of ${withCommas(total)} tokens`;
}

// Progress of reading the uncached tokens.
function ReadingBar({ progress }: { progress: Progress }) {
  const { total, cache, processed } = progress;
  return <progress aria-label="Progress of reading the prompt" max={total - cache} value={processed - cache} />;
}

function stateWords(answer: Answer): string {
  switch (answer.state) {
    case "waiting": return waitingWords(answer);
    case "writing": return "Writing…";
    case "stopped": return "Stopped.";
    case "cut":
    case "failed": return answer.problem ?? "Cut.";
    case "done": return answer.finish === "length" ? "Ended at its limit of tokens or time." : "Done.";
  }
}

interface AnswerProps {
  answer: Answer;
  memory: SequenceMemory | null;
  most: number; // bytes, of the largest answer
  goOn: () => void;
}

function AnswerView({ answer, memory, most, goOn }: AnswerProps) {
  const more = canGoOn(answer);
  const { progress } = answer;
  return (
    <article class={`answer ${answer.state}`} aria-busy={isOpen(answer)}>
      <h2>{answer.model}</h2>
      <div class="text"><Markdown text={answer.text} /></div>
      <footer>
        <p class="state">
          <span>{stateWords(answer)}</span>
          {answer.state === "waiting" && progress && progress.processed < progress.total &&
            <ReadingBar progress={progress} />}
          {more && <button type="button" onClick={goOn}
            title="Repeats the request with the same seed and a higher limit, so that the text continues">Go on</button>}
        </p>
        <Meter {...{ answer, memory, most }} />
      </footer>
    </article>
  );
}

// Always has the same lines, so that nothing moves when a number arrives.
function Meter({ answer, memory, most }: Omit<AnswerProps, "goOn">) {
  const used = memory && `${memory.exact ? "" : "at most "}${bytes(memory.used)}`;
  return (
    <dl class="meter">
      <div><dt>Speed</dt><dd>{speedOf(answer) || "–"}</dd></div>
      <div><dt>Prompt</dt><dd>{rememberedOf(answer) || "–"}</dd></div>
      <div><dt>Memory in use</dt><dd><Bar share={(memory?.used ?? 0) / most} kind="used" />
        {used ? [used, memory.growth].filter(Boolean).join(", ") : "–"}</dd></div>
      <div><dt>With full attention</dt><dd><Bar share={(memory?.full ?? 0) / most} kind="full" />
        {memory ? bytes(memory.full) : "–"}</dd></div>
    </dl>
  );
}

// A turn's bars share one scale.
function Bar({ share, kind }: { share: number; kind: string }) {
  return <i class={`bar ${kind}`} aria-hidden="true"><i style={{ width: `${100 * share}%` }} /></i>;
}
