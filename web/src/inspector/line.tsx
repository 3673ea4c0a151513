// Shows the text's tokens, each coloured by its weight to or from the selected one.
import { useLayoutEffect, useRef } from "preact/hooks";
import type { Head, Inspection } from "../api/inspection";
import { between, placeOf, visible } from "./read";

interface Props {
  inspection: Inspection;
  head: Head;
  at: number; // selected token
  pinned: number; // clicked token, where the keyboard starts
  hover: (token: number | null) => void;
  pin: (token: number) => void;
}

const STEPS: Record<string, (at: number, last: number) => number> = {
  ArrowRight: (at) => at + 1,
  ArrowLeft: (at) => at - 1,
  ArrowDown: (at) => at + 10,
  ArrowUp: (at) => at - 10,
  Home: () => 0,
  End: (_, last) => last,
};

// 0 to 10 tenths, as classes that the stylesheet colours.
function tenths(weight: number, most: number): number {
  return most > 0 ? Math.min(10, Math.ceil(10 * Math.sqrt(Math.abs(weight) / most) - 0.5)) : 0;
}

export function TokenLine({ inspection, head, at, pinned, hover, pin }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const byKey = useRef(false);
  const last = inspection.tokens.length - 1;
  useLayoutEffect(() => {
    if (byKey.current) (box.current!.children[pinned] as HTMLElement | undefined)?.focus();
    byKey.current = false;
  }, [pinned]);
  const onKey = (event: KeyboardEvent) => {
    const step = STEPS[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    byKey.current = true;
    pin(Math.max(0, Math.min(last, step(pinned, last))));
  };
  const weights = inspection.tokens.map((_, token) => between(head, at, token));
  const most = (from: number, to: number) => Math.max(0, ...weights.slice(from, to).map(Math.abs));
  const [mostPast, mostLater] = [most(0, at + 1), most(at + 1, weights.length)];
  return (
    <div class="tokens" role="group" aria-label="Tokens of the text" ref={box} onKeyDown={onKey}
      onMouseLeave={() => hover(null)}>
      {inspection.tokens.map((_, token) => {
        const side = token <= at ? "past" : "ahead";
        const shade = tenths(weights[token]!, token <= at ? mostPast : mostLater);
        const place = placeOf(head, Math.max(at, token), token);
        return (
          <button key={token} type="button" tabIndex={token === pinned ? 0 : -1}
            aria-current={token === at ? "true" : undefined}
            class={`token ${side} s${shade} ${head.places ? `place${place < 0 ? "-none" : place}` : ""}`}
            onMouseEnter={() => hover(token)} onFocus={() => pin(token)} onClick={() => pin(token)}>
            {visible(inspection, token)}
          </button>
        );
      })}
    </div>
  );
}
