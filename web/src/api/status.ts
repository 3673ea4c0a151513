// Whether the server is there, and which models it has.
import { Refused, isHealthy, listModels } from "./client";
import { Signal } from "../shared/store";
import type { ModelEntry } from "./types";

type State = "asking" | "ready" | "gone" | "back" | "locked";

const READY_MS = 5000;
const GONE_MS = 1000;

export const status = {
  changed: new Signal(),
  state: "asking" as State,
  models: [] as ModelEntry[],
};

let timer = 0;

function set(state: State): void {
  if (state === status.state) return;
  status.state = state;
  status.changed.now();
}

async function readModels(): Promise<void> {
  const before = status.state;
  try {
    status.models = await listModels();
    set(before === "gone" ? "back" : "ready");
    status.changed.now();
  } catch (error) {
    set(error instanceof Refused && error.status === 401 ? "locked" : "gone");
  }
}

async function look(): Promise<void> {
  const healthy = await isHealthy();
  if (!healthy) set("gone");
  else if (status.state === "gone" || status.state === "asking") await readModels();
  // A tab that nobody sees need not ask.
  const wait = document.hidden ? 30000 : status.state === "gone" ? GONE_MS : READY_MS;
  window.clearTimeout(timer);
  timer = window.setTimeout(look, wait);
}

// At once, as when a request has just failed, or a key was given.
export function lookNow(): void {
  void look();
}

export function unlock(): void {
  set("asking");
  lookNow();
}

export function watchServer(): void {
  document.addEventListener("visibilitychange", () => !document.hidden && lookNow());
  lookNow();
}

export const modelOf = (id: string): ModelEntry | undefined => status.models.find((model) => model.id === id);
