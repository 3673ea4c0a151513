"""Runs the benchmarks and writes docs/performance.md (AVX-512) or performance-ISA.md from their results.

    build/bench-venv/bin/python bench/peers/run.py [--only ggml sdpa ...] [--threads 2] [--document-only]

Each leaves build/bench/NAME.json; the document is made of what is there, so one can be run again alone. About half an hour in all on two
cores. Close other programs first. The exit code is 1 if one failed or refused a number.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("CORTADO_BUILD", ROOT / "build/release"))
RESULTS = ROOT / "build/bench"

LENGTHS = (
    "gated_scan/channel,gated_scan/head,delta_scan/head,window_attention/128,elementwise_scan,short_conv,latte,macchiato,blurry_window,"
    "gated_slot,abc"
)
BRIEF_TRAINING = ["--tokens", "256", "--batch", "1"]  # gpt.py measures training
# Run by the program: NAME -> arguments.
PROGRAM = {
    "ops": ["ops", "--tokens", "4096", "--threads", "1,{threads}", "--rounds", "7"],
    "lengths": ["ops", "--op", LENGTHS, "--threads", "{threads}", "--rounds", "3"],
    "model_macchiato": ["model", "configs/macchiato-gpu.json", *BRIEF_TRAINING, "--rounds", "5", "--budget", "300"]
    + ["--depth", "100,1000,10000,100000,1000000", "--threads", "{threads}"],
    "model_softmax": ["model", "configs/nanogpt-gpu.json", "--set", "positions=rotary", *BRIEF_TRAINING, "--rounds", "5"]
    + ["--budget", "30", "--depth", "100,1000,10000,100000,1000000", "--threads", "{threads}"],
    # The same operations on tiny tensors: their time is a step's overhead.
    "model_tiny": ["model", "configs/macchiato-gpu.json", "--set", "dim=24", "--set", "mixer.latents=6", "--set", "feed_forward.dim=8"]
    + [*BRIEF_TRAINING, "--rounds", "9", "--depth", "100", "--threads", "{threads}"],
}
SCRIPTS = {
    "ggml": "ggml.py",
    "sdpa": "sdpa.py",
    "pytorch_chunked": "pytorch_chunked.py",
    "slots": "slots.py",
    "transformers": "transformers_scans.py",
    "jax": "jax_scan.py",
    "gpt": "gpt.py",
    "llama_cpp": "llama_cpp.py",
    "hybrids": "hybrids.py",
    "written_gguf": "written_gguf.py",
    "transfer": "transfer.py",
    "isas": "isas.py",
}


def pin(threads):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def run_program(name, threads):
    words = [word.replace("{threads}", str(threads)) for word in PROGRAM[name]]
    if threads == 1:
        words = [word.replace("1,1", "1") for word in words]
    command = [str(BUILD / "bin/cortado"), "bench", *words, "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: pin(threads))
    if done.returncode == 0:
        (RESULTS / f"{name}.json").write_text(done.stdout)
    return done.returncode


def run_script(name, threads):
    script = Path(__file__).with_name(SCRIPTS[name])
    return subprocess.run([sys.executable, "-W", "ignore", str(script), "--threads", str(threads)], cwd=ROOT).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*PROGRAM, *SCRIPTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=names, help=", ".join(names))
    parser.add_argument("--threads", type=int, default=min(2, len(os.sched_getaffinity(0))))
    parser.add_argument("--document-only", action="store_true", help="make the document from what is there")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    failed = []
    for number, name in enumerate([] if options.document_only else options.only, 1):
        print(f"[bench-peers] {number}/{len(options.only)} {name}", flush=True)
        start = time.monotonic()
        code = (run_program if name in PROGRAM else run_script)(name, options.threads)
        print(f"[bench-peers] {name}: {'done' if code == 0 else f'exit code {code}'} after {time.monotonic() - start:.0f} s", flush=True)
        if code:
            failed.append(name)
    code = subprocess.run([sys.executable, str(Path(__file__).with_name("document.py"))], cwd=ROOT).returncode
    if failed:
        print(f"[bench-peers] failed, or refused a number: {', '.join(failed)}", file=sys.stderr)
    sys.exit(1 if failed or code else 0)


if __name__ == "__main__":
    main()
