// What is being looked at. It outlasts a look at another view, and nothing else.
import { Refused, inspect } from "../api/client";
import type { Asked, Inspection } from "../api/inspection";
import type { Message } from "../api/types";
import { Signal } from "../shared/store";

const KEPT = 24; // answers
const BUSY_MS = 700;

export const EXAMPLE = "The keeper of the lighthouse lit the lamp. The lamp of the lighthouse was lit by the keeper.";

export const inspector = {
  changed: new Signal(),
  text: EXAMPLE,
  messages: null as Message[] | null, // a conversation instead of the text
  model: "",
  layer: 0,
  head: 0,
  answer: null as Inspection | null,
  state: "idle" as "idle" | "reading" | "waiting",
  problem: "",
};

const known = new Map<string, Inspection>();
let wanted: Asked | null = null;
let shown: Asked | null = null;
let running = false;

const pause = (ms: number): Promise<void> => new Promise((done) => window.setTimeout(done, ms));

// The server looks at one text at a time.
async function ask(asked: Asked): Promise<Inspection> {
  for (;;) {
    try {
      return await inspect(asked);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 429) throw error;
      inspector.state = "waiting";
      inspector.changed.now();
      await pause(BUSY_MS);
    }
  }
}

function show(asked: Asked, answer: Inspection): void {
  shown = asked;
  inspector.answer = answer;
  inspector.layer = answer.layers[0]!.layer;
  inspector.head = answer.layers[0]!.heads[0]!.head;
}

// Only what was asked for last: who goes through the layers does not wait for each.
async function work(): Promise<void> {
  if (running) return;
  running = true;
  while (wanted) {
    const asked: Asked = wanted;
    const key = JSON.stringify(asked);
    wanted = null;
    inspector.problem = "";
    inspector.state = "reading";
    inspector.changed.now();
    try {
      const answer = known.get(key) ?? (await ask(asked));
      known.delete(key);
      known.set(key, answer);
      if (known.size > KEPT) known.delete(known.keys().next().value!);
      show(asked, answer);
    } catch (error) {
      inspector.problem = error instanceof Error ? error.message : String(error);
    }
  }
  running = false;
  inspector.state = "idle";
  inspector.changed.now();
}

function askFor(asked: Asked): void {
  wanted = asked;
  void work();
}

// The text or the conversation, from the first layer and head on that are chosen.
export function inspectNow(): void {
  const { model, text, messages } = inspector;
  askFor({ model, ...(messages ? { messages } : { prompt: text }), layers: [inspector.layer], heads: [inspector.head] });
}

// Another layer or head of what is shown.
export function choosePart(layer: number, head: number): void {
  if (!shown || !inspector.answer) return;
  const heads = inspector.answer.model_layers[layer]?.heads ?? 1;
  inspector.layer = layer;
  inspector.head = Math.min(head, heads - 1);
  askFor({ ...shown, layers: [inspector.layer], heads: [inspector.head] });
}

export function chooseModel(model: string): void {
  inspector.model = model;
  inspector.layer = inspector.head = 0;
  inspector.changed.now();
}

// From the playground.
export function openConversation(model: string, messages: Message[]): void {
  inspector.messages = messages;
  if (model !== inspector.model) chooseModel(model);
  location.hash = "#/inspector";
  inspectNow();
}
