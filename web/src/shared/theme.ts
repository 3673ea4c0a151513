import { Signal } from "./store";

export type Theme = "auto" | "light" | "dark";
const KEY = "cortado.theme";

export const theme = {
  changed: new Signal(),
  get: (): Theme => (localStorage.getItem(KEY) as Theme | null) ?? "auto",
  set(value: Theme): void {
    localStorage.setItem(KEY, value);
    apply();
  },
};

function apply(): void {
  document.documentElement.dataset.theme = theme.get();
  theme.changed.now();
}

export function watchTheme(): void {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
}

// A canvas does not know light-dark(), so this computes the colour.
export function colorOf(name: string): string {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}
