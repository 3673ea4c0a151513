// A conversation is a tree of turns; a turn is a question with its answers. These functions are pure.
import type { Message, Progress, Sampling, Usage } from "../api/types";

export interface TextFile {
  name: string;
  text: string;
}

// "cut": the page or the server closed before the end.
export type AnswerState = "waiting" | "writing" | "done" | "stopped" | "cut" | "failed";

export interface Answer {
  model: string;
  state: AnswerState;
  text: string;
  seed: number;
  sampling: Sampling; // as asked: with the seed, the same answer comes again
  system: string;
  finish?: string;
  problem?: string;
  usage?: Usage;
  progress?: Progress; // of reading the prompt
  tokens: number; // generated so far
  tab?: string; // that streams it
  firstMs?: number; // until the first token
  writeMs?: number; // from the first token to the last
}

export interface Turn {
  id: string;
  parent: string; // "": the conversation begins with it
  text: string;
  files: TextFile[];
  answers: Answer[]; // one per model
}

export interface Conversation {
  id: string;
  title: string;
  changed: number;
  models: string[]; // one, or two side by side
  system: string;
  sampling: Sampling; // the server sets what is missing
  seed: number | null; // null: a new one each time
  turns: Record<string, Turn>; // in the order in which they were made
  followed: Record<string, string | null>; // by turn ("": the start), the next turn shown
}

const newId = (): string => Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(36)).join("");

export function newConversation(like?: Conversation): Conversation {
  return {
    id: newId(), title: "", changed: Date.now(), models: like ? [...like.models] : [], system: like?.system ?? "",
    sampling: { ...like?.sampling }, seed: like?.seed ?? null, turns: {}, followed: {},
  };
}

export function childrenOf(conversation: Conversation, parent: string): Turn[] {
  return Object.values(conversation.turns).filter((turn) => turn.parent === parent);
}

// Returns the shown turns, first to last.
export function shownPath(conversation: Conversation): Turn[] {
  const path: Turn[] = [];
  let next = conversation.followed[""];
  while (next && conversation.turns[next]) {
    path.push(conversation.turns[next]!);
    next = conversation.followed[next];
  }
  return path;
}

function pathTo(conversation: Conversation, turn: Turn): Turn[] {
  const path = [turn];
  while (path[0]!.parent) path.unshift(conversation.turns[path[0]!.parent]!);
  return path;
}

// Adds a turn after `parent`, beside its other children, and shows it.
export function addTurn(conversation: Conversation, parent: string, text: string, files: TextFile[]): Turn {
  const turn: Turn = { id: newId(), parent, text, files, answers: [] };
  conversation.turns[turn.id] = turn;
  conversation.followed[parent] = turn.id;
  if (!conversation.title) conversation.title = (text.trim() || files[0]?.name || "").slice(0, 60);
  return turn;
}

// Shows the conversation up to this turn; the next message starts a new branch.
export function branchAfter(conversation: Conversation, turn: Turn): void {
  conversation.followed[turn.id] = null;
}

export function show(conversation: Conversation, turn: Turn): void {
  conversation.followed[turn.parent] = turn.id;
}

export function promptText(turn: Turn): string {
  return [...turn.files.map((file) => file.text), turn.text].filter((text) => text).join("\n\n");
}

// Returns the messages that the model of that column reads to answer `turn`.
export function messagesFor(conversation: Conversation, turn: Turn, column: number, system: string): Message[] {
  const messages: Message[] = system.trim() ? [{ role: "system", content: system }] : [];
  for (const step of pathTo(conversation, turn)) {
    messages.push({ role: "user", content: promptText(step) });
    const answer = step.answers[column] ?? step.answers[0];
    if (step !== turn && answer?.text) messages.push({ role: "assistant", content: answer.text });
  }
  return messages;
}

export function markLeft(answer: Answer): void {
  answer.state = "cut";
  answer.problem = "The page was closed while this was being written.";
}

export const isOpen = (answer: Answer): boolean => answer.state === "waiting" || answer.state === "writing";

// Whether the answer can be continued.
export const canGoOn = (answer: Answer): boolean =>
  answer.state === "cut" || answer.state === "stopped" || (answer.state === "done" && answer.finish === "length");
