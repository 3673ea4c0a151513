// Requests answers.
import { Refused, Unreachable, streamAnswer } from "../api/client";
import { lookNow } from "../api/status";
import type { Chunk } from "../api/types";
import { deleteConversation, keepCurrent, openOnes, saveAll, tab, touch } from "./store";
import { type Answer, type Conversation, type TextFile, type Turn, addTurn, markLeft, messagesFor } from "./tree";

const running = new Map<Answer, AbortController>();

const newSeed = (): number => crypto.getRandomValues(new Uint32Array(1))[0]! >>> 1;

export const isRunning = (turn: Turn): boolean => turn.answers.some((answer) => running.has(answer));

export function stop(turn: Turn): void {
  for (const answer of turn.answers) running.get(answer)?.abort();
}

// Also stops answers, which nobody would see.
export function discard(id: string): void {
  Object.values(openOnes.get(id)?.turns ?? {}).forEach(stop);
  deleteConversation(id);
}

class Recording {
  private readonly begun = performance.now();
  private firstAt = 0;
  private text = "";
  private tokens = 0;
  private readonly kept: string;

  // With `again`, the answer is regenerated: the old text stays until the new one is as long.
  constructor(private readonly answer: Answer, again: boolean) {
    this.kept = again ? answer.text : "";
  }

  take(chunk: Chunk): void {
    const choice = chunk.choices?.[0];
    if (chunk.usage) this.answer.usage = chunk.usage;
    if (chunk.prompt_progress) this.answer.progress = chunk.prompt_progress;
    if (choice?.finish_reason) this.answer.finish = choice.finish_reason;
    const words = choice?.delta?.content;
    if (!words) return;
    this.text += words;
    ++this.tokens;
    this.firstAt ||= performance.now();
    this.answer.state = "writing";
    this.answer.tokens = this.tokens;
    this.answer.firstMs = this.firstAt - this.begun;
    this.answer.writeMs = performance.now() - this.firstAt;
    if (!this.kept.startsWith(this.text)) this.answer.text = this.text;
  }

  end(): void {
    this.answer.state = "done";
    this.answer.text = this.text;
  }
}

// Leaving the page closes its connections, which is no server error. If the page stays after all (the link was a
// download, say), errors count again after two seconds.
let leaving = false;
addEventListener("beforeunload", () => {
  leaving = true;
  setTimeout(() => (leaving = false), 2000);
});

function fail(answer: Answer, error: unknown, aborted: boolean): void {
  if (leaving) {
    markLeft(answer);
  } else if (aborted) {
    answer.state = "stopped";
  } else if (error instanceof Unreachable) {
    answer.state = "cut";
    answer.problem = `Cut: ${error.message}.`;
    lookNow();
  } else {
    answer.state = "failed";
    answer.problem = error instanceof Refused ? error.message : String(error);
  }
}

async function run(conversation: Conversation, turn: Turn, column: number, again = false): Promise<void> {
  const answer = turn.answers[column]!;
  const { model, seed, sampling, system } = answer;
  const messages = messagesFor(conversation, turn, column, system);
  const control = new AbortController();
  running.set(answer, control);
  const recording = new Recording(answer, again);
  answer.state = "waiting";
  answer.tab = tab;
  // Clears what an earlier run left.
  for (const told of ["problem", "finish", "usage", "progress", "firstMs", "writeMs"] as const) delete answer[told];
  touch(conversation);
  try {
    for await (const chunk of streamAnswer({ ...sampling, model, messages, seed }, control.signal)) {
      recording.take(chunk);
      touch(conversation);
    }
    recording.end();
  } catch (error) {
    fail(answer, error, control.signal.aborted);
  }
  running.delete(answer);
  touch(conversation);
  saveAll();
}

function answerAll(conversation: Conversation, turn: Turn): void {
  const seed = conversation.seed ?? newSeed();
  turn.answers = conversation.models.map((model) => ({
    model, seed, state: "waiting", text: "", tokens: 0, sampling: { ...conversation.sampling },
    system: conversation.system,
  }));
  keepCurrent(conversation);
  turn.answers.forEach((_, column) => void run(conversation, turn, column));
}

export function ask(conversation: Conversation, parent: string, text: string, files: TextFile[]): void {
  answerAll(conversation, addTurn(conversation, parent, text, files));
}

// Another answer to the same turn, as a new branch.
export function askAgain(conversation: Conversation, turn: Turn): void {
  ask(conversation, turn.parent, turn.text, turn.files);
}

// The API cannot continue half an answer. The same seed gives the same text again, and more.
export function goOn(conversation: Conversation, turn: Turn, column: number): void {
  const answer = turn.answers[column]!;
  const most = answer.sampling.max_tokens;
  if (answer.finish === "length" && most) answer.sampling.max_tokens = 2 * most;
  void run(conversation, turn, column, true);
}
