import { useEffect, useRef, useState } from "preact/hooks";
import { modelOf, status } from "../api/status";
import type { Sampling } from "../api/types";
import { short } from "../shared/format";
import { touch } from "./store";
import type { Conversation } from "./tree";

export function ModelChoice({ conversation }: { conversation: Conversation }) {
  const [first = "", second = ""] = conversation.models;
  // Reads the current models: another choice may have changed them since the last render.
  const choose = (column: number, model: string) => {
    const models = [conversation.models[0] ?? "", conversation.models[1] ?? ""];
    models[column] = model;
    conversation.models = models.filter((it) => it);
    touch(conversation);
  };
  return (
    <>
      <ModelSelect label="Model" value={first} choose={(model) => choose(0, model)} />
      <ModelSelect label="Compare with" value={second} none="none" choose={(model) => choose(1, model)} />
    </>
  );
}

function ModelSelect(props: { label: string; value: string; none?: string; choose: (model: string) => void }) {
  const { label, value, none, choose } = props;
  const known = status.models.map((model) => model.id);
  return (
    <label>
      {label}
      <select value={value} onChange={(event) => choose(event.currentTarget.value)}>
        {none && <option value="">{none}</option>}
        {value && !known.includes(value) && <option value={value}>{value} (not served now)</option>}
        {!none && !value && <option value="">…</option>}
        {status.models.map((model) => (
          <option key={model.id} value={model.id}>
            {model.id}{model.parameters ? `, ${short(model.parameters)}` : ""}{memoryWords(model.memory)}
          </option>
        ))}
      </select>
    </label>
  );
}

const memoryWords = (memory?: string): string => (memory && memory !== "no --memory" ? `, ${memory}` : "");

type Field = { name: keyof Omit<Sampling, "stop">; label: string; min: number; max: number; step: number };

const FIELDS: Field[] = [
  { name: "temperature", label: "Temperature", min: 0, max: 100, step: 0.05 },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.01 },
  { name: "top_k", label: "Top k, 0 for all", min: 0, max: 1e9, step: 1 },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01 },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 100, step: 0.05 },
  { name: "max_tokens", label: "Max tokens", min: 1, max: 1e9, step: 1 },
];

// Stays open until Escape or a click outside it.
function useClosing() {
  const box = useRef<HTMLDetailsElement>(null);
  const close = (): void => {
    box.current!.open = false;
  };
  useEffect(() => {
    const beside = (event: PointerEvent) => !box.current?.contains(event.target as Node) && close();
    addEventListener("pointerdown", beside);
    return () => removeEventListener("pointerdown", beside);
  }, []);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || !box.current!.open) return;
    event.stopPropagation();
    close();
    box.current!.querySelector("summary")!.focus();
  };
  return { ref: box, onKeyDown };
}

export function SettingsPanel({ conversation }: { conversation: Conversation }) {
  const { sampling } = conversation;
  const usual = modelOf(conversation.models[0] ?? "")?.sampling ?? {};
  const closing = useClosing();
  const [resets, setResets] = useState(0);
  const change = (part: Partial<Sampling>) => {
    conversation.sampling = { ...conversation.sampling, ...part };
    touch(conversation);
  };
  const reset = () => {
    conversation.sampling = {};
    conversation.seed = null;
    setResets(resets + 1);
    touch(conversation);
  };
  return (
    <details class="settings" {...closing}>
      <summary>Settings</summary>
      <div class="panel">
        <label class="wide">
          System message
          <textarea rows={2} value={conversation.system} onInput={(event) => {
            conversation.system = event.currentTarget.value;
            touch(conversation);
          }} />
        </label>
        {FIELDS.map(({ name, ...field }) => (
          <NumberField key={name} {...field} value={sampling[name]} empty={defaultWords(usual[name])}
            change={(value) => change({ [name]: value })} />
        ))}
        <NumberField label="Seed" empty="new each time" min={0} max={2 ** 53} step={1}
          value={conversation.seed ?? undefined} change={(value) => {
            conversation.seed = value ?? null;
            touch(conversation);
          }} />
        <StopField key={resets} stops={sampling.stop ?? []} change={(stop) => change({ stop })} />
        <button type="button" title="Resets everything except the system message" onClick={reset}>Reset</button>
      </div>
    </details>
  );
}

interface NumberProps {
  label: string;
  empty: string; // shown if empty
  min: number;
  max: number;
  step: number;
  value: number | undefined;
  change: (value: number | undefined) => void;
}

const defaultWords = (value: number | undefined): string =>
  value === undefined ? "default" : `default: ${Number(value.toPrecision(4))}`;

// Empty: not sent, so the server's default applies.
function NumberField({ label, empty, min, max, step, value, change }: NumberProps) {
  const onInput = (input: HTMLInputElement) => {
    if (input.value === "") change(undefined);
    else if (input.validity.valid || input.validity.stepMismatch) change(Number(input.value));
  };
  return (
    <label>
      {label}
      <input type="number" min={min} max={max} step={step} value={value ?? ""} placeholder={empty}
        onInput={(event) => onInput(event.currentTarget)} />
    </label>
  );
}

function StopField({ stops, change }: { stops: string[]; change: (stops: string[] | undefined) => void }) {
  const [text, setText] = useState(stops.join("\n"));
  const onInput = (value: string) => {
    setText(value);
    const lines = value.split("\n").filter((line) => line);
    change(lines.length ? lines : undefined);
  };
  return (
    <label class="wide">
      Stop sequences, one per line
      <textarea rows={2} value={text} onInput={(event) => onInput(event.currentTarget.value)} />
    </label>
  );
}
