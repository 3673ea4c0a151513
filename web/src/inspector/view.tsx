import { useLayoutEffect, useState } from "preact/hooks";
import type { Inspection } from "../api/inspection";
import { status } from "../api/status";
import { useSignal } from "../shared/store";
import { Detail } from "./detail";
import { TokenLine } from "./line";
import { GatesPanel, LatentsPanel, MemoriesPanel, SlotsPanel, WeightsPanel } from "./panels";
import { chooseModel, choosePart, inspectNow, inspector, showExample, showNeedle } from "./store";

const WORDS = { idle: "", reading: "Reading…", waiting: "The server looks at another text; waiting…" };

export function InspectorView() {
  useSignal(inspector.changed);
  useSignal(status.changed);
  const first = status.models[0]?.id;
  useLayoutEffect(() => {
    if (first && !inspector.model) chooseModel(first);
  }, [first]);
  const { answer, state } = inspector;
  return (
    <>
      <h1>Inspector</h1>
      <p>A text as a layer reads it: what each token takes from those before it, where each is kept, and who remembers
        it.</p>
      <p class="row examples">
        <span class="soft">Examples:</span>
        <button type="button" disabled={!inspector.model} onClick={() => void showNeedle()}>A needle in a long text</button>
        <button type="button" disabled={!inspector.model} onClick={showExample}>The same words twice</button>
      </p>
      <Ask />
      {answer && (
        <div class="shown" aria-busy={state !== "idle"}>
          <Shown key={`${answer.model} ${answer.tokens.join()}`} inspection={answer} />
        </div>
      )}
    </>
  );
}

function Ask() {
  const { text, messages, model, state, problem, answer } = inspector;
  const send = (event: Event) => {
    event.preventDefault();
    inspectNow();
  };
  const ready = model && (messages || text.trim());
  return (
    <form class="ask" onSubmit={send}>
      {messages ? <Conversation count={messages.length} /> : (
        <label class="wide">
          Text
          <textarea rows={3} value={text} onInput={(event) => {
            inspector.text = event.currentTarget.value;
            inspector.changed.now();
          }} />
        </label>
      )}
      <div class="row">
        <label>
          Model{" "}
          <select value={model} onChange={(event) => {
            chooseModel(event.currentTarget.value);
            if (answer || state !== "idle") inspectNow();
          }}>
            {!model && <option value="">…</option>}
            {status.models.map(({ id }) => <option key={id} value={id}>{id}</option>)}
          </select>
        </label>
        <button type="submit" class="main" disabled={!ready}>Inspect</button>
        {answer && <PartChoice inspection={answer} />}
      </div>
      <p class={`state ${problem ? "problem" : ""}`} role="status">{problem || WORDS[state]}</p>
    </form>
  );
}

function Conversation({ count }: { count: number }) {
  const leave = () => {
    inspector.messages = null;
    inspector.changed.now();
  };
  return (
    <p class="row">
      <span>A conversation of {count} {count === 1 ? "message" : "messages"}, from the playground.</span>
      <button type="button" onClick={leave}>A text instead</button>
    </p>
  );
}

function PartChoice({ inspection }: { inspection: Inspection }) {
  const layers = inspection.model_layers;
  const { layer, head } = inspector;
  return (
    <>
      <label>
        Layer{" "}
        <select value={layer} onChange={(event) => choosePart(Number(event.currentTarget.value), head)}>
          {layers.map(({ mixer }, index) => <option key={index} value={index}>{index}, {mixer}</option>)}
        </select>
      </label>
      <label>
        Head{" "}
        <select value={head} onChange={(event) => choosePart(layer, Number(event.currentTarget.value))}>
          {Array.from({ length: layers[layer]?.heads ?? 1 }, (_, index) => (
            <option key={index} value={index}>{index}</option>
          ))}
        </select>
      </label>
    </>
  );
}

function Shown({ inspection }: { inspection: Inspection }) {
  const [pinned, pin] = useState(inspection.tokens.length - 1);
  const [over, hover] = useState<number | null>(null);
  const layer = inspection.layers[0]!;
  const head = layer.heads[0]!;
  const at = over ?? pinned;
  const props = { inspection, layer, head, at, hover, pin };
  return (
    <>
      <div class="halves">
        <section>
          <h2>The text, as token {at} sees it</h2>
          <p class="soft">{inspection.model}, layer {layer.layer} ({layer.mixer}), head {head.head}</p>
          <TokenLine {...{ inspection, head, at, pinned, hover, pin }} />
          <LineLegend memories={head.places ? layer.memories : undefined} />
        </section>
        <Detail {...{ inspection, layer, head, at }} />
      </div>
      {layer.no_weights && <p class="soft">Of {layer.mixer} there are no weights of tokens: what its values become is
        not a weighted sum of the past.</p>}
      <div class="panels">
        {head.weights && <WeightsPanel {...props} />}
        {head.places && <MemoriesPanel {...props} />}
        {head.latents && <LatentsPanel {...props} />}
        {head.slots && <SlotsPanel {...props} />}
        {head.gates && <GatesPanel {...props} />}
      </div>
    </>
  );
}

function LineLegend({ memories }: { memories: string[] | undefined }) {
  return (
    <ul class="legend">
      <li><i class="swatch past" aria-hidden="true" />tokens that it reads</li>
      <li><i class="swatch ahead" aria-hidden="true" />tokens that read it later</li>
      {memories?.map((memory, place) => (
        <li key={memory}><i class={`swatch line place${place}`} aria-hidden="true" />in the {memory}</li>
      ))}
      <li class="soft">arrow keys go from token to token</li>
    </ul>
  );
}
