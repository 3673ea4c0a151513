import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { modelOf, status } from "../api/status";
import { useSignal } from "../shared/store";
import { Composer } from "./composer";
import { ask, discard, isRunning } from "./run";
import { ModelChoice, SettingsPanel } from "./settings";
import { openConversation, startConversation, store, touch, undoDelete } from "./store";
import { type Conversation, type Turn, childrenOf, shownPath } from "./tree";
import { TurnView } from "./turn";

export function Playground() {
  useSignal(store.changed);
  useSignal(status.changed);
  const conversation = store.current;
  useChosenModel(conversation);
  return (
    <>
      <h1 class="hidden">Playground</h1>
      <Sidebar />
      <div class="talk">
        <div class="toolbar">
          <ModelChoice conversation={conversation} />
          <SettingsPanel key={conversation.id} conversation={conversation} />
        </div>
        <Messages conversation={conversation} />
        <Composer key={conversation.id} conversation={conversation} />
      </div>
    </>
  );
}

// Chooses the first model if none is chosen; a missing one stays chosen, as it may return.
function useChosenModel(conversation: Conversation): void {
  const first = status.models[0]?.id;
  useLayoutEffect(() => {
    if (!first || conversation.models.length) return;
    conversation.models = [first];
    store.changed.now();
  }, [conversation, first]);
}

function Sidebar() {
  const [shown, setShown] = useState(false);
  return (
    <aside aria-label="Conversations" class={shown ? "shown" : ""}>
      <div class="row">
        <button type="button" onClick={startConversation}>New conversation</button>
        <button type="button" class="narrow-only" aria-expanded={shown} onClick={() => setShown(!shown)}>
          {store.list.length} {store.list.length === 1 ? "conversation" : "conversations"}
        </button>
      </div>
      {store.full && <p class="problem" role="alert">The browser keeps no more: this conversation will not survive a
        reload. Delete others.</p>}
      <Deleted />
      <ul>
        {store.list.map(({ id, title }) => (
          <li key={id} class={id === store.current.id ? "current" : ""}>
            <button type="button" class="link" aria-current={id === store.current.id}
              onClick={() => openConversation(id)}>{title || "(no words)"}</button>
            <button type="button" class="icon" aria-label={`Delete ${title}`} title="Delete"
              onClick={() => discard(id)}>×</button>
          </li>
        ))}
      </ul>
    </aside>
  );
}

function Deleted() {
  const last = store.deleted[store.deleted.length - 1];
  return (
    <p class="deleted" role="status">
      {last && <><span>Deleted: {last.title || "(no words)"}</span>
        <button type="button" onClick={undoDelete}>Undo</button></>}
    </p>
  );
}

function Messages({ conversation }: { conversation: Conversation }) {
  const path = shownPath(conversation);
  const box = useRef<HTMLDivElement>(null);
  const following = useRef(true);
  useLayoutEffect(() => {
    following.current = true;
  }, [conversation.id, path.length]);
  // Scrolls down after every render, unless the user has scrolled up.
  useLayoutEffect(() => {
    if (following.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  const onScroll = () => {
    const it = box.current!;
    following.current = it.scrollHeight - it.scrollTop - it.clientHeight < 40;
  };
  const last = path[path.length - 1];
  return (
    <div class="messages" ref={box} onScroll={onScroll} tabIndex={0} role="region" aria-label="Messages">
      {path.length === 0 && <Welcome conversation={conversation} />}
      {path.map((turn) => <TurnView key={turn.id} conversation={conversation} turn={turn} />)}
      {last && <Later conversation={conversation} parent={last.id} />}
      <Announcement last={last} />
    </div>
  );
}

// Tells screen readers the state only: announcing each token would be too much.
function Announcement({ last }: { last: Turn | undefined }) {
  const words = last && (isRunning(last) ? "An answer is being written" : "The answer has ended");
  return <p class="hidden" role="status">{words}</p>;
}

const QUESTIONS = ["What is the capital of France?", "Tell me a short story about a lighthouse and its keeper.",
  "Give me three tips for a picnic."];
const BEGINNINGS = ["ROMEO:", "First Citizen:", "Once upon a time"];

function Welcome({ conversation }: { conversation: Conversation }) {
  const untaught = modelOf(conversation.models[0] ?? "")?.chat === null;
  return (
    <div class="welcome">
      <p>Talk with a served model, or with two side by side, and see what each keeps in memory. Every turn can be edited
        or branched: both versions stay, and only what differs is read.</p>
      {untaught && <p>This is not a chat model: it continues the text.</p>}
      <ul class="examples" aria-label="Examples">
        {(untaught ? BEGINNINGS : QUESTIONS).map((text) => (
          <li key={text}>
            <button type="button" disabled={!conversation.models.length}
              onClick={() => ask(conversation, "", text, [])}>{text}</button>
          </li>
        ))}
      </ul>
    </div>
  );
}

// Shown where a new branch begins, with a button back to the last existing one.
function Later({ conversation, parent }: { conversation: Conversation; parent: string }) {
  const turns = childrenOf(conversation, parent);
  if (!turns.length) return null;
  const back = () => {
    conversation.followed[parent] = turns[turns.length - 1]!.id;
    touch(conversation);
  };
  return (
    <p class="later">
      What you write now becomes branch {turns.length + 1}.{" "}
      <button type="button" onClick={back}>Back to branch {turns.length}</button>
    </p>
  );
}
