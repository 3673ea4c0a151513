// A line chart by uPlot, with an HTML legend that shows the values at the pointer.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { colorOf, theme } from "./theme";
import { useSignal } from "./store";

export interface Line {
  name: string;
  points: [number, number | null][];
  dashed?: boolean;
  scattered?: boolean; // points without a line
}

interface AxisSpec {
  label: string;
  show: (value: number) => string;
  log?: boolean;
  range?: [number, number];
  marks?: number[]; // grid lines, if not the library's
  binary?: boolean; // grid lines at powers of two
}

export interface ChartProps {
  label: string; // for screen readers
  lines: Line[];
  x: AxisSpec;
  y: AxisSpec;
  limits?: { at: number; name: string }[]; // horizontal
  mark?: number; // a vertical line
}

const COLORS = 8;
const colorName = (index: number): string => `--series-${(index % COLORS) + 1}`;
const isDashed = (line: Line, index: number): boolean => line.dashed ?? Math.floor(index / COLORS) % 2 === 1;

// Several points may share an x, so each point gets its own column.
function alignScattered(lines: Line[]): uPlot.AlignedData {
  const all = lines.flatMap((line, index) => line.points.map(([x, y]) => ({ x, y, index })));
  all.sort((a, b) => a.x - b.x);
  return [all.map(({ x }) => x), ...lines.map((_, index) => all.map((it) => (it.index === index ? it.y : null)))];
}

// Puts all lines over the same x, with null where a line has no point.
function align(lines: Line[]): uPlot.AlignedData {
  if (lines.some((line) => line.scattered)) return alignScattered(lines);
  const xs = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((a, b) => a - b);
  const columns = lines.map((line) => {
    const known = new Map(line.points);
    return xs.map((x) => known.get(x) ?? null);
  });
  return [xs, ...columns];
}

const POWERS_OF_TWO = Array.from({ length: 60 }, (_, i) => 2 ** i);

function axis(spec: AxisSpec, side: 2 | 3, ink: string, grid: string): uPlot.Axis {
  const line = { stroke: grid, width: 1 };
  return {
    side: side === 2 ? 2 : 3, label: spec.label, stroke: ink, grid: line, ticks: line, size: side === 2 ? 46 : 76,
    ...(spec.binary && { incrs: POWERS_OF_TWO }),
    ...(spec.marks && {
      splits: (_plot: uPlot, _axis: number, min: number, max: number) =>
        spec.marks!.filter((mark) => mark >= min && mark <= max),
      filter: (_plot: uPlot, splits: number[]) => splits,
    }),
    // On a log axis only powers of ten have labels; the library passes null for the rest.
    values: (_plot, splits) => splits.map((value) => (value === null ? "" : spec.show(value))),
  };
}

function drawLimits(plot: uPlot, props: ChartProps): void {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colorOf("--soft");
  ctx.lineWidth = ratio;
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  ctx.setLineDash([3 * ratio, 3 * ratio]);
  ctx.font = `${12 * ratio}px system-ui, sans-serif`;
  for (const { at, name } of props.limits ?? []) {
    const y = plot.valToPos(at, "y", true);
    if (y < bbox.top || y > bbox.top + bbox.height) continue;
    stroke(ctx, bbox.left, y, bbox.left + bbox.width, y);
    ctx.fillText(name, bbox.left + 6 * ratio, y - 4 * ratio);
  }
  if (props.mark !== undefined) {
    const x = plot.valToPos(props.mark, "x", true);
    stroke(ctx, x, bbox.top, x, bbox.top + bbox.height);
  }
  ctx.restore();
}

function stroke(ctx: CanvasRenderingContext2D, x1: number, y1: number, x2: number, y2: number): void {
  ctx.beginPath();
  ctx.moveTo(x1, y1);
  ctx.lineTo(x2, y2);
  ctx.stroke();
}

function seriesOf(line: Line, index: number): uPlot.Series {
  const color = colorOf(colorName(index));
  return {
    label: line.name, stroke: color, width: line.scattered ? 0 : 2, spanGaps: true,
    ...(isDashed(line, index) && { dash: [8, 5] }),
    points: { show: line.scattered || line.points.length < 40, size: line.scattered ? 9 : 6, fill: color },
    ...(line.scattered && { paths: () => null }),
  };
}

function aroundAll(_plot: uPlot, min: number, max: number): uPlot.Range.MinMax {
  const room = 0.03 * (max - min || Math.abs(max) || 1);
  return [min - room, max + room];
}

function optionsOf(props: ChartProps, size: { width: number; height: number }, hover: (index: number | null) => void,
  latest: { current: ChartProps }, hidden: ReadonlySet<string>): uPlot.Options {
  const ink = colorOf("--soft");
  const grid = colorOf("--line");
  const scale = (spec: AxisSpec): uPlot.Scale => ({
    time: false, distr: spec.log ? 3 : 1, ...(spec.range && { range: spec.range }),
  });
  // Leaves room at the ends: of several points there, only the first would be drawn.
  const x = props.lines.some((line) => line.scattered) ? { ...scale(props.x), range: aroundAll } : scale(props.x);
  return {
    ...size, legend: { show: false }, padding: [12, 16, 0, 0],
    scales: { x, y: scale(props.y) },
    axes: [axis(props.x, 2, ink, grid), axis(props.y, 3, ink, grid)],
    series: [{}, ...props.lines.map((line, index) => ({ ...seriesOf(line, index), show: !hidden.has(line.name) }))],
    cursor: { drag: { x: false, y: false } },
    hooks: {
      setCursor: [(plot) => hover(plot.cursor.idx ?? null)],
      draw: [(plot) => drawLimits(plot, latest.current)],
    },
  };
}

export function Chart(props: ChartProps) {
  useSignal(theme.changed);
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [at, setAt] = useState<number | null>(null);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const data = align(props.lines);
  // A change of any of these makes a new plot; new numbers only update it.
  const look = JSON.stringify([props.lines.map(({ name, dashed, scattered }) => [name, dashed, scattered]), props.x,
    props.y, theme.get(), matchMedia("(prefers-color-scheme: dark)").matches]);
  useLayoutEffect(() => {
    const size = { width: box.current!.clientWidth, height: box.current!.clientHeight };
    plot.current = new uPlot(optionsOf(props, size, setAt, latest, hidden), align(props.lines), box.current!);
    return () => plot.current?.destroy();
  }, [look]);
  useLayoutEffect(() => plot.current?.setData(data), [JSON.stringify(data), JSON.stringify(props.limits), props.mark]);
  // Hiding a line also rescales the axes to the shown ones.
  const hide = (next: ReadonlySet<string>) => {
    setHidden(next);
    props.lines.forEach(({ name }, index) => plot.current?.setSeries(index + 1, { show: !next.has(name) }));
  };
  useEffect(() => {
    const watch = new ResizeObserver(() => {
      const { clientWidth: width, clientHeight: height } = box.current!;
      if (width) plot.current?.setSize({ width, height });
    });
    watch.observe(box.current!);
    return () => watch.disconnect();
  }, []);
  return (
    <div class="chart">
      <div class="plot" ref={box} role="img" aria-label={props.label} />
      <Legend {...props} {...{ data, at, hidden, hide }} />
    </div>
  );
}

interface LegendProps extends ChartProps {
  data: uPlot.AlignedData;
  at: number | null;
  hidden: ReadonlySet<string>;
  hide: (names: ReadonlySet<string>) => void;
}

const MANY = 8;

function Legend({ lines, data, at, x, y, hidden, hide }: LegendProps) {
  const toggle = (name: string) => {
    const next = new Set(hidden);
    if (!next.delete(name)) next.add(name);
    hide(next);
  };
  const all = () => hide(new Set(hidden.size ? [] : lines.map((line) => line.name)));
  return (
    <ul class="legend">
      {lines.length > MANY && <li><button type="button" class="all" onClick={all}>{hidden.size ? "Show" : "Hide"} all</button></li>}
      {lines.map((line, index) => {
        const value = at === null || hidden.has(line.name) ? null : data[index + 1]?.[at];
        return (
          <li key={index}>
            <button type="button" aria-pressed={!hidden.has(line.name)} title="Show or hide this line"
              onClick={() => toggle(line.name)}>
              <LineSign line={line} index={index} />
              {line.name}
            </button>
            {value != null && <b>{y.show(value)}</b>}
          </li>
        );
      })}
      <li>{at === null || data[0][at] === undefined ? "" : `at ${x.show(data[0][at]!)}`}&nbsp;</li>
    </ul>
  );
}

function LineSign({ line, index }: { line: Line; index: number }) {
  return (
    <svg viewBox="0 0 18 6" aria-hidden="true">
      {line.scattered ? <circle cx="9" cy="3" r="3" fill={`var(${colorName(index)})`} />
        : <line x1="0" y1="3" x2="18" y2="3" stroke={`var(${colorName(index)})`} stroke-width="2.5"
          stroke-dasharray={isDashed(line, index) ? "5 3" : undefined} />}
    </svg>
  );
}
