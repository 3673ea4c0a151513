// Tracks whether the server answers, and its models.
import { Refused, apiKey, isHealthy, keyRefused, listModels } from "./client";
import { Signal } from "../shared/store";
import type { ModelEntry } from "./types";

type State = "asking" | "ready" | "gone" | "back" | "locked";

const READY_MS = 5000;
const GONE_MS = 1000;

export const status = {
  changed: new Signal(),
  state: "asking" as State,
  wrongKey: false, // the last key was not valid
  models: [] as ModelEntry[],
};

let timer = 0;

function set(state: State): void {
  if (state === status.state) return;
  status.state = state;
  status.changed.now();
}

// A rejected key is forgotten, so later requests are sent without one.
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
  // Asks each time: another server may have replaced the last one.
  else if (status.state !== "locked") await readModels();
  // A hidden tab asks rarely.
  const wait = document.hidden ? 30000 : status.state === "gone" ? GONE_MS : READY_MS;
  window.clearTimeout(timer);
  timer = window.setTimeout(look, wait);
}

// Checks now, e.g. after a failed request.
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
