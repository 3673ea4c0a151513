// Formats numbers for people.

export const withCommas = (value: number): string => Math.round(value).toLocaleString("en-US");

export const tokensOf = (count: number): string => `${withCommas(count)} ${count === 1 ? "token" : "tokens"}`;

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

// Counts in powers of 1,024, with binary prefixes: 1 GiB is 2^30 bytes.
export function bytes(value: number): string {
  let unit = 0;
  let shown = value;
  while (shown >= 1024 && unit < UNITS.length - 1) {
    shown /= 1024;
    ++unit;
  }
  const digits = unit === 0 || shown >= 100 ? 0 : shown >= 10 ? 1 : 2;
  return `${shown.toFixed(digits)} ${UNITS[unit]}`;
}

export function short(value: number): string {
  if (value >= 1e9) return `${trimmed(value / 1e9)} B`;
  if (value >= 1e6) return `${trimmed(value / 1e6)} M`;
  if (value >= 1e4) return `${trimmed(value / 1e3)} k`;
  return withCommas(value);
}

function trimmed(value: number): string {
  return String(Number(value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)));
}

export function plain(value: number, digits = 4): string {
  if (Number.isInteger(value)) return withCommas(value);
  return value.toLocaleString("en-US", { maximumSignificantDigits: digits });
}
