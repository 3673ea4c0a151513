// One token: what it reads, what reads it, and which memory holds it.
import { useState } from "preact/hooks";
import type { Head, Inspection, Layer, Slots } from "../api/inspection";
import { plain } from "../shared/format";
import {
  type Weighed, latentName, placeOf, readsMost, rememberedBy, scoresOf, slotContents, stays, visible, weightOf,
} from "./read";

interface Props {
  inspection: Inspection;
  layer: Layer;
  head: Head;
  at: number;
}

const FEW = 5;
const number = (value: number | null): string => (value === null ? "no number" : plain(value, 3));
const named = (inspection: Inspection, token: number): string => `${token} “${visible(inspection, token)}”`;

// Always the same number of rows, so that nothing moves.
function WeighedList({ inspection, list, none }: { inspection: Inspection; list: Weighed[]; none: string }) {
  return (
    <ol class="weighed">
      {Array.from({ length: FEW }, (_, index) => {
        const it = list[index];
        return (
          <li key={index}>
            {it ? <><span class="name">{named(inspection, it.token)}</span> <b>{number(it.weight)}</b></>
              : index === 0 ? none : "\u00a0"}
          </li>
        );
      })}
    </ol>
  );
}

function lifeOf(head: Head, layer: Layer, at: number): string {
  return stays(head, at).map(({ place, from }) => {
    const name = place < 0 ? "gone" : layer.memories?.[place] ?? `memory ${place}`;
    return from === at ? name : `${name} from token ${from} on`;
  }).join(", then ");
}

function scoreWords(head: Head, at: number): string {
  const scores = scoresOf(head, at);
  if (!scores.length) return "not ranked";
  return scores.map(({ before, score, stays: kept }) =>
    `${number(score)} before token ${before} (${kept ? "stayed" : "left for the state"})`).join("; ");
}

function latentWords({ window, p }: NonNullable<Head["latents"]>, at: number): string {
  const row = p[at] ?? [];
  const best = row.map((weight, state) => ({ weight, state })).sort((a, b) => b.weight - a.weight).slice(0, 3);
  return best.map(({ weight, state }) => `${latentName(window, state)} ${number(weight)}`).join(", ");
}

function slotWords(row: number[]): string {
  const best = row.map((weight, slot) => ({ weight, slot }))
    .sort((a, b) => Math.abs(b.weight) - Math.abs(a.weight)).slice(0, 3);
  return best.map(({ weight, slot }) => `slot ${slot + 1} ${number(weight)}`).join(", ");
}

// Lists the slots that hold most of a token at the end.
function heldWords(slots: Slots, at: number): string {
  return slotWords(slotContents(slots, slots.write.length - 1).map((row) => row[at] ?? 0));
}

function gateWords({ norm, decay, least, most }: NonNullable<Head["gates"]>, at: number): string {
  const extremes = least[at] === most[at] ? "" : ` (${number(least[at]!)} to ${number(most[at]!)})`;
  return `norm ${number(norm[at]!)}; ${number(decay[at]!)} of the old state is left${extremes}`;
}

// The selected token's text for screen readers.
function said(inspection: Inspection, head: Head, at: number): string {
  if (!head.weights) return "";
  const words = (list: Weighed[]) => list.map(({ token, weight }) => `${named(inspection, token)}, ${number(weight)}`);
  const past = words(readsMost(head, at, 2)).join("; ");
  return `It reads ${past}. It is remembered by ${words(rememberedBy(head, at, 2)).join("; ") || "no later token"}.`;
}

// Has a fixed height: what is below must not move.
function Fact({ name, words }: { name: string; words: string }) {
  return <div><dt>{name}</dt><dd title={words}>{words}</dd></div>;
}

export function Detail({ inspection, layer, head, at }: Props) {
  return (
    <section class="detail" aria-label="The token">
      <h2>Token {named(inspection, at)} <span class="soft">of {inspection.tokens.length}</span></h2>
      <div class="fields">
        <div><h3>It reads</h3>
          <WeighedList inspection={inspection} list={readsMost(head, at, FEW)} none="no weights" /></div>
        <div><h3>Remembered by</h3>
          <WeighedList inspection={inspection} list={rememberedBy(head, at, FEW)}
            none={head.weights ? "no later token" : "no weights"} /></div>
      </div>
      <dl class="facts">
        {head.places && <Fact name="Lives in" words={lifeOf(head, layer, at)} />}
        {head.decisions && <Fact name="Score" words={scoreWords(head, at)} />}
        {head.latents && <Fact name="Chooses" words={latentWords(head.latents, at)} />}
        {head.slots && <Fact name="Reads slots" words={slotWords(head.slots.read[at] ?? [])} />}
        {head.slots && <Fact name="Held in the end by" words={heldWords(head.slots, at)} />}
        {head.gates && <Fact name="State" words={gateWords(head.gates, at)} />}
      </dl>
      <Numbers {...{ inspection, layer, head, at }} />
      <p class="hidden" role="status">{said(inspection, head, at)}</p>
    </section>
  );
}

// Shows all numbers of this token in the pictures as a table.
function Numbers({ inspection, layer, head, at }: Props) {
  const [open, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>All numbers of this token</summary>
      {open && (
        <div class="scroll tall" tabIndex={0} role="region" aria-label="Numbers">
          <table>
            <thead>
              <tr>
                <th scope="col">Token</th>
                <th scope="col">it reads</th>
                <th scope="col">remembers it</th>
                {head.places && <th scope="col">memory, now</th>}
              </tr>
            </thead>
            <tbody>
              {inspection.tokens.map((_, token) => {
                const place = token <= at ? placeOf(head, at, token) : -1;
                return (
                  <tr key={token}>
                    <th scope="row">{named(inspection, token)}</th>
                    <td>{head.weights && token <= at ? number(weightOf(head, at, token)) : ""}</td>
                    <td>{head.weights && token >= at ? number(weightOf(head, token, at)) : ""}</td>
                    {head.places && <td>{token > at ? "" : place < 0 ? "gone" : layer.memories![place]}</td>}
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      )}
    </details>
  );
}
