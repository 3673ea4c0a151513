// Has answers written.
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

// With its answers, which nobody would see any more.
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

  // With `again`, the answer is written a second time: what is kept of it stays until that is reached.
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

// A page that is left loses its connections, which is not the server's doing. Who stays after all, as behind a
// download, has a page that works again.
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
  // Nothing of a run before is said of this one.
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

// Another answer to the same, as a branch beside it.
export function askAgain(conversation: Conversation, turn: Turn): void {
  ask(conversation, turn.parent, turn.text, turn.files);
}

// The API has no way to go on with half an answer. The same seed writes the same words again, and more.
export function goOn(conversation: Conversation, turn: Turn, column: number): void {
  const answer = turn.answers[column]!;
  const most = answer.sampling.max_tokens;
  if (answer.finish === "length" && most) answer.sampling.max_tokens = 2 * most;
  void run(conversation, turn, column, true);
}
