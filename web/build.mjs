// Bundles the page into dist/: `node build.mjs`.
import { build } from "esbuild";
import { copyFile, mkdir, rm } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

await rm(here("dist"), { recursive: true, force: true });
await mkdir(here("dist"), { recursive: true });
await build({
  entryPoints: { app: here("src/main.tsx") },
  outdir: here("dist"),
  bundle: true,
  minify: true,
  format: "esm",
  // light-dark() of the styles needs these; older ones would show the page without colours.
  target: ["chrome123", "firefox120", "safari17.5"],
  jsx: "automatic",
  jsxImportSource: "preact",
  loader: { ".jsonl": "text" },
  legalComments: "eof",
  logLevel: "warning",
});
await copyFile(here("src/index.html"), here("dist/index.html"));
