// A matrix as colours, drawn on a canvas, with tokens on its axes.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useSignal } from "../shared/store";
import { colorOf, theme } from "../shared/theme";

export type Rgb = [number, number, number];

export interface Point {
  row: number;
  column: number;
}

export interface HeatProps {
  label: string; // for screen readers
  size: { rows: number; columns: number };
  value: (row: number, column: number) => number | null; // null: empty
  // Shades up to ±`most` (overall or per row); or one colour per integer.
  scale: { most: number | ((row: number) => number) } | { colors: string[] };
  names: { rows: (row: number) => string; columns: (column: number) => string };
  axes: { rows: string; columns: string };
  square?: boolean;
  mark?: Partial<Point>;
  hover?: (point: Point | null) => void;
  choose?: (point: Point) => void;
}

const FONT = 11; // of labels
const LETTER = 6.5; // mean width of a letter
const LONGEST = 10; // letters per label
const TOP = 6; // half a label's height

function rgb(color: string): Rgb {
  const found = color.match(/[\d.]+/g) ?? [];
  const parts = found.slice(0, 3).map(Number);
  // color(srgb r g b) is 0 to 1.
  const scale = color.startsWith("color(") ? 255 : 1;
  return [(parts[0] ?? 0) * scale, (parts[1] ?? 0) * scale, (parts[2] ?? 0) * scale];
}

const mixed = (from: Rgb, to: Rgb, share: number): Rgb =>
  [0, 1, 2].map((i) => from[i]! + (to[i]! - from[i]!) * share) as Rgb;

function painter(scale: HeatProps["scale"]): (value: number, row: number) => Rgb {
  if ("colors" in scale) {
    const colors = scale.colors.map((name) => rgb(colorOf(name)));
    return (value) => colors[value] ?? [0, 0, 0];
  }
  const empty = rgb(colorOf("--heat-0"));
  const above = rgb(colorOf("--heat-1"));
  const below = rgb(colorOf("--heat-below"));
  const most = typeof scale.most === "function" ? scale.most : () => scale.most as number;
  // The square root makes the many small weights visible.
  return (value, row) =>
    mixed(empty, value < 0 ? below : above, Math.sqrt(Math.min(1, Math.abs(value) / (most(row) || 1))));
}

// Draws one pixel per cell.
function picture({ size, value, scale }: HeatProps): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = size.columns;
  canvas.height = size.rows;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(size.columns, size.rows);
  const paint = painter(scale);
  for (let row = 0; row < size.rows; ++row) {
    for (let column = 0; column < size.columns; ++column) {
      const number = value(row, column);
      if (number === null) continue;
      const at = 4 * (row * size.columns + column);
      image.data.set([...paint(number, row), 255], at);
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

interface Frame {
  left: number;
  width: number;
  height: number;
}

const longest = (count: number, name: (index: number) => string): number =>
  Math.min(LONGEST, Math.max(...Array.from({ length: count }, (_, index) => name(index).length)));

// Returns the area of the cells, without the labels.
function frameOf(canvas: HTMLCanvasElement, { size, names }: HeatProps): Frame {
  const left = Math.ceil(longest(size.rows, names.rows) * LETTER) + 12;
  const bottom = Math.ceil(longest(size.columns, names.columns) * LETTER) + 10;
  return { left, width: canvas.clientWidth - left, height: canvas.clientHeight - bottom - TOP };
}

// Returns every how many cells there is room for a label.
function every(count: number, room: number): number {
  return Math.max(1, Math.ceil((count * (FONT + 3)) / Math.max(1, room)));
}

function drawNames(context: CanvasRenderingContext2D, props: HeatProps, { left, width, height }: Frame): void {
  const { rows, columns } = props.size;
  context.fillStyle = colorOf("--soft");
  context.font = `${FONT}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  const rowStep = every(rows, height);
  for (let row = 0; row < rows; row += rowStep) {
    context.fillText(short(props.names.rows(row)), left - 5, TOP + ((row + 0.5) * height) / rows);
  }
  const columnStep = every(columns, width);
  for (let column = 0; column < columns; column += columnStep) {
    context.save();
    context.translate(left + ((column + 0.5) * width) / columns, TOP + height + 5);
    context.rotate(-Math.PI / 2);
    context.fillText(short(props.names.columns(column)), 0, 0);
    context.restore();
  }
}

const short = (name: string): string => (name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name);

function drawMark(context: CanvasRenderingContext2D, { mark, size }: HeatProps,
  { left, width, height }: Frame): void {
  context.strokeStyle = colorOf("--ink");
  context.lineWidth = 1;
  const { row, column } = mark ?? {};
  if (row !== undefined) {
    context.strokeRect(left + 0.5, TOP + (row * height) / size.rows, width - 1, height / size.rows);
  }
  if (column !== undefined) {
    context.strokeRect(left + (column * width) / size.columns, TOP + 0.5, width / size.columns, height - 1);
  }
}

function draw(canvas: HTMLCanvasElement, image: HTMLCanvasElement, props: HeatProps): void {
  const ratio = devicePixelRatio;
  const { clientWidth, clientHeight } = canvas;
  canvas.width = Math.round(clientWidth * ratio);
  canvas.height = Math.round(clientHeight * ratio);
  const context = canvas.getContext("2d")!;
  context.scale(ratio, ratio);
  const frame = frameOf(canvas, props);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, frame.left, TOP, frame.width, frame.height);
  context.strokeStyle = colorOf("--line");
  context.strokeRect(frame.left + 0.5, TOP + 0.5, frame.width - 1, frame.height - 1);
  drawNames(context, props, frame);
  drawMark(context, props, frame);
}

function pointAt(event: MouseEvent, props: HeatProps): Point | null {
  const canvas = event.currentTarget as HTMLCanvasElement;
  const { size } = props;
  const box = canvas.getBoundingClientRect();
  const frame = frameOf(canvas, props);
  const column = Math.floor(((event.clientX - box.left - frame.left) / frame.width) * size.columns);
  const row = Math.floor(((event.clientY - box.top - TOP) / frame.height) * size.rows);
  return column >= 0 && column < size.columns && row >= 0 && row < size.rows ? { row, column } : null;
}

export function HeatMap(props: HeatProps & { data: unknown }) {
  useSignal(theme.changed);
  const canvas = useRef<HTMLCanvasElement>(null);
  const image = useRef<HTMLCanvasElement | null>(null);
  const [width, setWidth] = useState(0);
  const look = `${theme.get()} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
  useEffect(() => {
    const watch = new ResizeObserver(() => setWidth(canvas.current!.clientWidth));
    watch.observe(canvas.current!);
    return () => watch.disconnect();
  }, []);
  useLayoutEffect(() => {
    image.current = picture(props);
  }, [props.data, look]);
  useLayoutEffect(() => draw(canvas.current!, image.current!, props),
    [props.data, look, width, props.mark?.row, props.mark?.column]);
  const point = (event: MouseEvent): Point | null => pointAt(event, props);
  return (
    <figure class="heat">
      <canvas ref={canvas} class={props.square ? "square" : ""} role="img" aria-label={props.label}
        onMouseMove={(event) => props.hover?.(point(event))} onMouseLeave={() => props.hover?.(null)}
        onClick={(event) => {
          const at = point(event);
          if (at) props.choose?.(at);
        }} />
      <figcaption class="soft">down: {props.axes.rows}; across: {props.axes.columns}</figcaption>
    </figure>
  );
}
