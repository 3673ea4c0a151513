// Keeps the conversations in the browser's localStorage: an index, and one key per conversation.
import { Signal } from "../shared/store";
import { type Conversation, isOpen, markLeft, newConversation } from "./tree";

const INDEX = "cortado.conversations";
const CURRENT = "cortado.current";
const keyOf = (id: string): string => `cortado.conversation.${id}`;

const SAVE_MS = 250;
// After this long without a change, a writing tab counts as gone.
const ALIVE_MS = 5000;

// Survives a reload, so that a tab knows its own answers.
const TAB = "cortado.tab";
export const tab = sessionStorage.getItem(TAB) ?? String(Math.random());
sessionStorage.setItem(TAB, tab);

export const store = {
  changed: new Signal(),
  list: [] as { id: string; title: string; changed: number }[],
  current: newConversation(),
  full: false, // the storage is full
  deleted: [] as Conversation[], // kept until this tab closes
};

// Answers may also be written in conversations that are not shown.
const open = new Map<string, Conversation>();
export const openOnes: ReadonlyMap<string, Conversation> = open;
const unsaved = new Set<Conversation>();
let timer = 0;

function parse<T>(key: string): T | null {
  try {
    return JSON.parse(localStorage.getItem(key) ?? "null") as T | null;
  } catch {
    return null;
  }
}

function writeIndex(): void {
  store.list.sort((a, b) => b.changed - a.changed);
  localStorage.setItem(INDEX, JSON.stringify(store.list));
}

function save(conversation: Conversation): void {
  const { id, title, changed } = conversation;
  try {
    localStorage.setItem(keyOf(id), JSON.stringify(conversation));
    store.list = [{ id, title, changed }, ...(parse<typeof store.list>(INDEX) ?? []).filter((it) => it.id !== id)];
    writeIndex();
    store.full = false;
  } catch {
    store.full = true;
  }
}

export function saveAll(): void {
  window.clearTimeout(timer);
  timer = 0;
  for (const conversation of unsaved) save(conversation);
  unsaved.clear();
}

// Redraws soon and saves a little later: a stream changes it many times per second.
export function touch(conversation: Conversation): void {
  if (store.deleted.includes(conversation)) return;
  conversation.changed = Date.now();
  unsaved.add(conversation);
  timer ||= window.setTimeout(saveAll, SAVE_MS);
  store.changed.soon();
}

function isBeingWritten(conversation: Conversation, by?: string): boolean {
  const answers = Object.values(conversation.turns).flatMap((turn) => turn.answers);
  return answers.some((answer) => isOpen(answer) && (by === undefined || answer.tab === by));
}

// An answer cut by leaving the page does not resume by itself.
function markCut(conversation: Conversation): void {
  const fresh = Date.now() - conversation.changed < ALIVE_MS;
  for (const answer of Object.values(conversation.turns).flatMap((turn) => turn.answers)) {
    if (!isOpen(answer) || (fresh && answer.tab !== tab)) continue;
    markLeft(answer);
  }
}

// Checks again whether another tab still writes: it may have closed silently.
function watch(conversation: Conversation): void {
  markCut(conversation);
  if (!isBeingWritten(conversation)) return;
  window.setTimeout(() => {
    if (open.get(conversation.id) !== conversation) return;
    watch(conversation);
    store.changed.soon();
  }, ALIVE_MS);
}

export function openConversation(id: string): void {
  let conversation = open.get(id);
  if (!conversation) {
    const kept = parse<Conversation>(keyOf(id));
    if (!kept) return;
    conversation = kept;
    open.set(id, conversation);
    watch(conversation);
  }
  store.current = conversation;
  sessionStorage.setItem(CURRENT, id);
  store.changed.now();
}

export function startConversation(): void {
  store.current = newConversation(store.current);
  open.set(store.current.id, store.current);
  sessionStorage.removeItem(CURRENT);
  store.changed.now();
}

export function deleteConversation(id: string): void {
  const conversation = open.get(id) ?? parse<Conversation>(keyOf(id));
  if (conversation) {
    unsaved.delete(conversation);
    store.deleted.push(conversation);
  }
  open.delete(id);
  localStorage.removeItem(keyOf(id));
  store.list = store.list.filter((it) => it.id !== id);
  writeIndex();
  if (store.current.id === id) startConversation();
  store.changed.now();
}

// Restores the conversation deleted last.
export function undoDelete(): void {
  const conversation = store.deleted.pop();
  if (!conversation) return;
  open.set(conversation.id, conversation);
  markCut(conversation);
  save(conversation);
  openConversation(conversation.id);
}

// Loads what another tab wrote, unless this tab writes it too.
function takeOver(key: string | null): void {
  for (const [id, mine] of open) {
    if (key !== keyOf(id) || unsaved.has(mine) || isBeingWritten(mine, tab)) continue;
    const theirs = parse<Conversation>(key);
    if (!theirs) continue;
    open.set(id, theirs);
    watch(theirs);
    if (store.current.id === id) store.current = theirs;
    store.changed.soon();
  }
}

export function restore(): void {
  store.list = parse<typeof store.list>(INDEX) ?? [];
  // Opens the tab's own conversation; in a new tab, the one used last.
  const id = sessionStorage.getItem(CURRENT) ?? store.list[0]?.id;
  if (id) openConversation(id);
  open.set(store.current.id, store.current);
  window.addEventListener("pagehide", saveAll);
  window.addEventListener("storage", (event) => {
    takeOver(event.key);
    if (event.key !== INDEX) return;
    store.list = parse<typeof store.list>(INDEX) ?? [];
    store.changed.now();
  });
}

// Remembers it as this tab's, for a reload.
export function keepCurrent(conversation: Conversation): void {
  open.set(conversation.id, conversation);
  sessionStorage.setItem(CURRENT, conversation.id);
  touch(conversation);
  saveAll();
}
