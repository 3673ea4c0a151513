import { useLayoutEffect, useReducer } from "preact/hooks";

// Tells components that something has changed; what it is they read themselves.
export class Signal {
  private readonly listeners = new Set<() => void>();
  private frame = 0;

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  now(): void {
    for (const listener of [...this.listeners]) listener();
  }

  // Once a frame, however often: an answer's tokens come faster than a screen shows them.
  soon(): void {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.now();
    });
  }
}

// Listens before anything else can happen: what changed between a drawing and a later effect would never be shown.
export function useSignal(signal: Signal): void {
  const [, again] = useReducer((count: number) => count + 1, 0);
  useLayoutEffect(() => signal.listen(() => again(undefined)), [signal]);
}
