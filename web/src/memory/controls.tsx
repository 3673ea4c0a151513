import { useState } from "preact/hooks";
import { tokensOf } from "../shared/format";
import { KINDS } from "./kinds";
import { MOST_TOKENS, PRESETS, type Settings, kindOf, toQuery } from "./sizes";

interface Props {
  settings: Settings;
  change: (part: Partial<Settings>) => void;
}

// Slider steps per factor of ten.
const STEPS = 100;

function lengthAt(step: number): number {
  const tokens = 10 ** (step / STEPS);
  return tokens < 1000 ? Math.round(tokens) : Number(tokens.toPrecision(3));
}

export function Controls({ settings, change }: Props) {
  return (
    <form onSubmit={(event) => event.preventDefault()}>
      <fieldset>
        <legend>Sequence</legend>
        <label class="slider">
          Length <span class="value">{tokensOf(settings.tokens)}</span>
          <input type="range" min={0} max={Math.log10(MOST_TOKENS) * STEPS} step={1}
            value={Math.round(Math.log10(settings.tokens) * STEPS)}
            aria-valuetext={tokensOf(settings.tokens)}
            onInput={(event) => change({ tokens: lengthAt(Number(event.currentTarget.value)) })} />
        </label>
        <div class="fields">
          <NumberInput label="Sequences at once" name="batch" {...{ settings, change }} />
          <Check label="Straight axes, no logarithms" name="linear" {...{ settings, change }} />
        </div>
      </fieldset>
      <ModelFields settings={settings} change={change} />
      <StateFields settings={settings} change={change} />
      <fieldset>
        <legend>Hybrid</legend>
        <label class="slider">
          Layers with full attention{" "}
          <span class="value">{Math.min(settings.full, settings.layers)} of {settings.layers}</span>
          <input type="range" min={0} max={settings.layers} step={1} value={Math.min(settings.full, settings.layers)}
            onInput={(event) => change({ full: Number(event.currentTarget.value) })} />
        </label>
      </fieldset>
      <CopyLink key={toQuery(settings)} />
    </form>
  );
}

function ModelFields({ settings, change }: Props) {
  return (
    <fieldset>
      <legend>Model</legend>
      <div class="fields">
        <label class="wide">
          Preset
          <select value={settings.preset} onChange={(event) => {
            const preset = event.currentTarget.value;
            change({ preset, ...PRESETS[preset] });
          }}>
            <option value="">Custom</option>
            {Object.keys(PRESETS).map((name) => <option key={name} value={name}>{name}</option>)}
          </select>
        </label>
        <NumberInput label="Layers" name="layers" own {...{ settings, change }} />
        <NumberInput label="Head size" name="headSize" own {...{ settings, change }} />
        <NumberInput label="Heads" name="heads" own {...{ settings, change }} />
        <NumberInput label="KV heads" name="kvHeads" own disabled={!settings.gqa} {...{ settings, change }} />
        <BytesSelect label="Cache precision" name="cacheBytes" {...{ settings, change }} />
        <Check label="Heads share keys and values (GQA)" name="gqa" {...{ settings, change }} />
        <Check label="Count the weights" name="weights" {...{ settings, change }} />
      </div>
    </fieldset>
  );
}

function StateFields({ settings, change }: Props) {
  const { size } = kindOf(settings);
  return (
    <fieldset>
      <legend>Linear layers</legend>
      <div class="fields">
        <label class="wide">
          What they keep
          <select value={settings.kind} onChange={(event) => change({ kind: event.currentTarget.value, size: 0 })}>
            {Object.entries(KINDS).map(([key, { name }]) => <option key={key} value={key}>{name}</option>)}
          </select>
        </label>
        {size && (
          <label class="wide">
            {size.label}
            <input type="number" min={1} max={1e6} step={1} value={settings.size || size.usual} onInput={(event) => {
              const input = event.currentTarget;
              if (input.value && input.validity.valid) change({ size: Number(input.value) });
            }} />
          </label>
        )}
        <BytesSelect label="State precision" name="stateBytes" {...{ settings, change }} />
        <Check label="One state per query head" name="perQuery" {...{ settings, change }} />
      </div>
    </fieldset>
  );
}

type NumberName = "layers" | "heads" | "kvHeads" | "headSize" | "batch";

function NumberInput(props: Props & { label: string; name: NumberName; own?: boolean; disabled?: boolean }) {
  const { label, name, own, disabled, settings, change } = props;
  const onInput = (input: HTMLInputElement) => {
    if (input.value && input.validity.valid) change({ [name]: Number(input.value), ...(own && { preset: "" }) });
  };
  return (
    <label>
      {label}
      <input type="number" min={1} max={name === "layers" ? 1000 : 100000} step={1} value={settings[name]}
        disabled={disabled} onInput={(event) => onInput(event.currentTarget)} />
    </label>
  );
}

const NUMBER_SIZES = [[4, "4 bytes (float32)"], [2, "2 bytes (16-bit)"], [1, "1 byte (8-bit)"], [0.5, "4 bits"]];

function BytesSelect({ label, name, settings, change }: Props & { label: string; name: "cacheBytes" | "stateBytes" }) {
  return (
    <label class="wide">
      {label}
      <select value={settings[name]} onChange={(event) => change({ [name]: Number(event.currentTarget.value) })}>
        {NUMBER_SIZES.map(([bytes, words]) => <option key={bytes} value={bytes}>{words}</option>)}
      </select>
    </label>
  );
}

function Check({ label, name, settings, change }: Props & { label: string; name: "gqa" | "weights" | "linear" | "perQuery" }) {
  return (
    <label class="wide check">
      <input type="checkbox" checked={settings[name]}
        onChange={(event) => change({ [name]: event.currentTarget.checked })} />
      {label}
    </label>
  );
}

function CopyLink() {
  const [said, setSaid] = useState("");
  const copy = () => {
    // Browsers allow the clipboard only to pages from this machine or over HTTPS.
    const written = navigator.clipboard?.writeText(location.href) ?? Promise.reject(new Error());
    written.then(() => setSaid("Copied."), () => setSaid("The page's address is the link."));
  };
  return (
    <p class="row">
      <button type="button" onClick={copy}>Copy a link to this</button>
      <span role="status">{said}</span>
    </p>
  );
}
