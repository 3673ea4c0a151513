import { useLayoutEffect, useReducer } from "preact/hooks";

// Tells components that something changed; they read it themselves.
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

  // At most once per frame: tokens arrive faster than a screen updates.
  soon(): void {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.now();
    });
  }
}

// Listens in a layout effect: a change between rendering and a later effect would be missed.
export function useSignal(signal: Signal): void {
  const [, again] = useReducer((count: number) => count + 1, 0);
  useLayoutEffect(() => signal.listen(() => again(undefined)), [signal]);
}
