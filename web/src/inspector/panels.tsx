// The pictures of a head: weights, memories, latents, slots, gates.
import type { Head, Inspection, Layer } from "../api/inspection";
import { Chart, type Line } from "../shared/chart";
import { plain, short } from "../shared/format";
import { HeatMap, type Point } from "./heat";
import { largest, latentName, placeOf, slotContents, visible, weightOf } from "./read";

export interface PanelProps {
  inspection: Inspection;
  layer: Layer;
  head: Head;
  at: number;
  hover: (token: number | null) => void;
  pin: (token: number) => void;
}

export const PLACE_COLORS = ["--series-4", "--series-1", "--series-3"];

const where = ({ layer, head }: PanelProps): string => `layer ${layer.layer}, head ${head.head}, ${layer.mixer}`;

// `most`: a number, or words if it differs per row.
function Scale({ most, signed }: { most: number | string; signed: boolean }) {
  const end = (sign: number): string => (typeof most === "string" ? `${sign < 0 ? "minus " : ""}${most}` : plain(sign * most, 2));
  return (
    <p class="scale soft">
      {signed && <><span>{end(-1)}</span><i class="ramp below" aria-hidden="true" /></>}
      <span>0</span><i class="ramp" aria-hidden="true" /><span>{end(1)}</span>
    </p>
  );
}

export function WeightsPanel(props: PanelProps) {
  const { inspection, head, at, hover, pin, layer } = props;
  const tokens = inspection.tokens.length;
  // Per row: in a long text one large weight would hide the many small ones.
  const most = head.weights!.map((row) => largest([row]));
  const signed = head.weights!.some((row) => row.some((weight) => (weight ?? 0) < 0));
  const name = (token: number): string => visible(inspection, token);
  return (
    <section class="panel">
      <h2>Weights</h2>
      <HeatMap data={head} square size={{ rows: tokens, columns: tokens }}
        label={`Weights that each token gives to its past, ${where(props)}. The largest is `
          + plain(Math.max(...most), 2)}
        value={(t, s) => (s <= t ? weightOf(head, t, s) : null)} scale={{ most: (row) => most[row]! }}
        names={{ rows: name, columns: name }} axes={{ rows: "the token that reads", columns: "the token that is read" }}
        mark={{ row: at, column: at }} hover={(point) => hover(point && point.row)}
        choose={(point: Point) => pin(point.row)} />
      <Scale most="the row's largest" signed={signed} />
      {layer.same_for_channels === false && <p class="soft">Each channel has its own weights: this is their mean.</p>}
    </section>
  );
}

export function MemoriesPanel(props: PanelProps) {
  const { inspection, layer, head, at, hover, pin } = props;
  const tokens = inspection.tokens.length;
  const memories = layer.memories!;
  const counts = memories.map((_, place) => [...(head.places![at] ?? "")].filter((it) => it === String(place)).length);
  const name = (token: number): string => visible(inspection, token);
  const summary = memories.map((memory, place) => `${counts[place]} in the ${memory}`).join(", ");
  return (
    <section class="panel">
      <h2>Memory of each token</h2>
      <HeatMap data={head} square size={{ rows: tokens, columns: tokens }}
        label={`Which memory holds each token, ${where(props)}. When token ${at} is read: ${summary}`}
        value={(t, s) => (s <= t && placeOf(head, t, s) >= 0 ? placeOf(head, t, s) : null)}
        scale={{ colors: PLACE_COLORS }} names={{ rows: name, columns: name }}
        axes={{ rows: "the token that is read", columns: "the token that is held" }}
        mark={{ row: at, column: at }} hover={(point) => hover(point && point.row)} choose={(point) => pin(point.row)} />
      <ul class="legend">
        {memories.map((memory, place) => (
          <li key={memory}><i class={`swatch place${place}`} aria-hidden="true" />{memory} <b>{counts[place]}</b></li>
        ))}
      </ul>
    </section>
  );
}

export function LatentsPanel(props: PanelProps) {
  const { inspection, head, at, hover, pin } = props;
  const { window, p } = head.latents!;
  const states = p[0]?.length ?? 0;
  const most = largest(p);
  const mean = Array.from({ length: states }, (_, state) => p.reduce((sum, row) => sum + row[state]!, 0) / p.length);
  const best = mean.indexOf(Math.max(...mean));
  return (
    <section class="panel">
      <h2>Latent states, p(l|t)</h2>
      <HeatMap data={head} size={{ rows: states, columns: p.length }}
        label={`Which latent states each token chooses, ${where(props)}. Chosen most: ${latentName(window, best)}, `
          + `${plain(mean[best] ?? 0, 2)} of all`}
        value={(state, t) => p[t]![state]!} scale={{ most }}
        names={{ rows: (state) => latentName(window, state), columns: (token) => visible(inspection, token) }}
        axes={{ rows: "states", columns: "tokens" }} mark={{ column: at }}
        hover={(point) => hover(point && point.column)} choose={(point) => pin(point.column)} />
      <Scale most={most} signed={false} />
    </section>
  );
}

export function SlotsPanel(props: PanelProps) {
  const { inspection, head, at } = props;
  const contents = slotContents(head.slots!, at);
  const most = largest(contents);
  return (
    <section class="panel">
      <h2>What the slots hold after token {at}</h2>
      <HeatMap data={contents} size={{ rows: contents.length, columns: inspection.tokens.length }}
        label={`How much of each token the ${contents.length} slots hold after token ${at}, ${where(props)}. The `
          + `largest is ${plain(most, 2)}`}
        value={(slot, token) => contents[slot]![token] ?? null} scale={{ most }}
        names={{ rows: (slot) => `slot ${slot + 1}`, columns: (token) => visible(inspection, token) }}
        axes={{ rows: "slots", columns: "tokens" }} mark={{ column: at }} choose={(point) => props.pin(point.column)} />
      <Scale most={most} signed={contents.some((row) => row.some((value) => value < 0))} />
    </section>
  );
}

export function GatesPanel(props: PanelProps) {
  const { norm, decay, least, most } = props.head.gates!;
  const points = (values: number[]): [number, number][] => values.map((value, token) => [token, value]);
  const constant = least.every((value, token) => value === most[token]);
  const decays: Line[] = constant ? [{ name: "decay", points: points(decay) }] : [
    { name: "decay, mean over the channels", points: points(decay) },
    { name: "least", points: points(least), dashed: true },
    { name: "most", points: points(most), dashed: true },
  ];
  const number = (value: number): string => plain(value, 3);
  return (
    <section class="panel gates">
      <h2>State and gates</h2>
      <Chart label={`Norm of the state after each token, ${where(props)}; at the end ${number(norm[norm.length - 1]!)}`}
        lines={[{ name: "norm of the state", points: points(norm) }]} mark={props.at}
        x={{ label: "token", show: short }} y={{ label: "norm", show: number }} />
      <Chart label={`Decay of the state at each token, ${where(props)}`} lines={decays} mark={props.at}
        x={{ label: "token", show: short }} y={{ label: "decay", show: number, range: [0, 1.02] }} />
    </section>
  );
}
