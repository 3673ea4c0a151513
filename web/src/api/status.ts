// Whether the server is there, and which models it has.
import { Refused, apiKey, isHealthy, keyRefused, listModels } from "./client";
import { Signal } from "../shared/store";
import type { ModelEntry } from "./types";

type State = "asking" | "ready" | "gone" | "back" | "locked";

const READY_MS = 5000;
const GONE_MS = 1000;

export const status = {
  changed: new Signal(),
  state: "asking" as State,
  wrongKey: false, // the last key that was given is none
  models: [] as ModelEntry[],
};

let timer = 0;

function set(state: State): void {
  if (state === status.state) return;
  status.state = state;
  status.changed.now();
}

// Told once: the key is forgotten, and whoever asks again asks without one.
function lock(): void {
  status.wrongKey ||= apiKey.get() !== "";
  apiKey.set("");
  set("locked");
  status.changed.now();
}

async function readModels(): Promise<void> {
  try {
    const models = await listModels();
    const changed = JSON.stringify(models) !== JSON.stringify(status.models);
    status.models = models;
    status.wrongKey = false;
    if (status.state !== "back") set(status.state === "gone" ? "back" : "ready");
    if (changed) status.changed.now();
  } catch (error) {
    if (!(error instanceof Refused && error.status === 401)) set("gone");
  }
}

async function look(): Promise<void> {
  const healthy = await isHealthy();
  if (!healthy) set("gone");
  // Each time: another server may have come in the place of the one before.
  else if (status.state !== "locked") await readModels();
  // A tab that nobody sees need not ask.
  const wait = document.hidden ? 30000 : status.state === "gone" ? GONE_MS : READY_MS;
  window.clearTimeout(timer);
  timer = window.setTimeout(look, wait);
}

// At once, as when a request has just failed.
export function lookNow(): void {
  void look();
}

export async function unlock(key: string): Promise<void> {
  status.wrongKey = false;
  status.changed.now();
  apiKey.set(key);
  await readModels();
}

export function watchServer(): void {
  keyRefused.listen(lock);
  document.addEventListener("visibilitychange", () => !document.hidden && lookNow());
  lookNow();
}

export const modelOf = (id: string): ModelEntry | undefined => status.models.find((model) => model.id === id);
