// Bundles the page into dist/: `node build.mjs`. `node build.mjs visualiser` makes visualiser.html of the memory view
// alone, a file that a browser opens without a server.
import { build } from "esbuild";
import { copyFile, mkdir, rm, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

const options = {
  bundle: true,
  minify: true,
  // The styles' light-dark() needs these browsers; older ones would show no colours.
  target: ["chrome123", "firefox120", "safari17.5"],
  jsx: "automatic",
  jsxImportSource: "preact",
  loader: { ".jsonl": "text" },
  legalComments: "eof",
  logLevel: "warning",
};

async function makePage() {
  await rm(here("dist"), { recursive: true, force: true });
  await mkdir(here("dist"), { recursive: true });
  await build({ ...options, entryPoints: { app: here("src/main.tsx") }, outdir: here("dist"), format: "esm" });
  await copyFile(here("src/index.html"), here("dist/index.html"));
}

// Browsers load no modules from files, so one file has everything.
async function makeVisualiser() {
  const entryPoints = { app: here("src/visualiser.tsx") };
  const { outputFiles } = await build({ ...options, entryPoints, outdir: here("."), format: "iife", write: false });
  const text = (end) => outputFiles.find(({ path }) => path.endsWith(end)).text;
  const script = text(".js").replaceAll("</script", "<\\/script");
  await writeFile(here("visualiser.html"), `<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <title>Memory of a sequence - cortado</title>
    <link rel="icon" href="data:,">
    <style>${text(".css")}</style>
  </head>
  <body><script>${script}</script></body>
</html>
`);
}

await (process.argv[2] === "visualiser" ? makeVisualiser() : makePage());
