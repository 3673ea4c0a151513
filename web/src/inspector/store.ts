// The inspector's state. It survives a change of view, but no reload.
import { Refused, inspect } from "../api/client";
import type { Asked, Inspection } from "../api/inspection";
import type { Message } from "../api/types";
import { Signal } from "../shared/store";
import { EXAMPLE, needleText } from "./examples";

const KEPT = 24; // cached answers
const BUSY_MS = 700;

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

// Retries while the server is busy: it inspects one text at a time.
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

function showNothing(): void {
  shown = inspector.answer = null;
}

const textOf = ({ model, prompt, messages }: Asked): string => JSON.stringify([model, prompt, messages]);

// Pictures must match the names beside them: another text's picture is removed; for the same text the shown part is
// chosen again.
function fail(asked: Asked, error: unknown): void {
  inspector.problem = error instanceof Error ? error.message : String(error);
  if (shown && inspector.answer && textOf(shown) === textOf(asked)) show(shown, inspector.answer);
  else showNothing();
}

// Returns whether nothing else was chosen since.
const isWanted = (asked: Asked): boolean => !wanted && asked.model === inspector.model;

// Runs only the last request, so that browsing layers does not wait for each.
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
      if (isWanted(asked)) show(asked, answer);
    } catch (error) {
      if (isWanted(asked)) fail(asked, error);
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

// Inspects the text or conversation at the chosen layer and head.
export function inspectNow(): void {
  const { model, text, messages } = inspector;
  askFor({ model, ...(messages ? { messages } : { prompt: text }), layers: [inspector.layer], heads: [inspector.head] });
}

// Shows another layer or head.
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
  inspector.problem = "";
  showNothing();
  inspector.changed.now();
}

export function showExample(): void {
  showText(EXAMPLE);
}

export async function showNeedle(): Promise<void> {
  const { model } = inspector;
  const text = await needleText(model).catch(() => EXAMPLE); // the inspection reports the same error
  if (model === inspector.model) showText(text);
}

function showText(text: string): void {
  inspector.messages = null;
  inspector.text = text;
  inspectNow();
}

// For the playground.
export function openConversation(model: string, messages: Message[]): void {
  inspector.messages = messages;
  if (model !== inspector.model) chooseModel(model);
  location.hash = "#/inspector";
  inspectNow();
}
