"""Can the tests fail? Flips a sign or drops a term in one place of the mechanisms at a time, and runs the tests that ought to notice.

    python scripts/mutate.py [--build build/release] [--only NAME]

Every mutation must turn the suite red; ends with 1 when one survives. The sources are put back after each, also on Ctrl-C; they must be
unchanged in git before. Takes about half a minute a mutation: each is compiled."""

import argparse
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MECHANISMS = "src/cortado/mechanisms"

# name, file, what stands there (once), what is put in its place, tests
MUTATIONS = [
    ("latte: the running maximum's decay changes its sign", f"{MECHANISMS}/latte/op.cpp",
     "gate = before - seen", "gate = seen - before", "*latte_*"),
    ("macchiato: the window loses its weight p(0|t)", f"{MECHANISMS}/macchiato/op.cpp",
     "expand_heads(p.narrow_symint(3, 0, 1), heads) * expand_heads(local, heads)", "expand_heads(local, heads)", "*macchiato_*"),
    ("linear: epsilon is subtracted from the denominator", f"{MECHANISMS}/linear/op.cpp",
     "sums.narrow_symint(3, values, 1) + eps", "sums.narrow_symint(3, values, 1) - eps", "*linear_*"),
    ("gla, retention, lightning: the scan's state is not carried on", f"{MECHANISMS}/gated_linear.cpp",
     'if (state) state->at("scan_state") = last;', "(void)last;", "*gla_*:*retention_*:*lightning_*"),
    ("delta family: no decay", f"{MECHANISMS}/delta.cpp",
     "beta(x), log_decay(x), {}, start", "beta(x), {}, {}, start", "*gated_delta_net_*:*kda_*"),
    ("rwkv4: the current token is not read", f"{MECHANISMS}/rwkv/wkv.cpp",
     "+ of_now * v) / (", ") / (", "*rwkv4_*"),
    ("griffin: the position does not move", f"{MECHANISMS}/griffin/mixer.cpp",
     'state->at("position") + batch.lengths(x)', 'state->at("position")', "*griffin_*"),
    ("h3: the input is not skipped to the output", f"{MECHANISMS}/h3/mixer.cpp",
     " + skip_.to(u.scalar_type()) * u", "", "*h3_*"),
    ("lolcats: the gate of the softmax part is forgotten", f"{MECHANISMS}/lolcats/parts.cpp",
     "factor.sigmoid() * (lse", "(lse", "*lolcats_*"),
    ("sliding window: the ring keeps one key too few", f"{MECHANISMS}/ring.h",
     "keep_last(joined, window - 1)", "keep_last(joined, window - 2)", "*sliding_window_*"),
]


def run(command, **options):
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)


def attempt(build, path, old, new, tests):
    """What became of one mutation: "caught", "survived", or a complaint."""
    source = ROOT / path
    text = source.read_text()
    if text.count(old) != 1:
        return f"the text to mutate occurs {text.count(old)} times in {path}"
    source.write_text(text.replace(old, new))
    try:
        built = run(["cmake", "--build", str(build), "--target", "mechanisms_tests"])
        if built.returncode:
            return "does not compile:\n" + built.stdout[-2000:]
        tested = run([str(build / "bin" / "mechanisms_tests"), f"--gtest_filter={tests}", "--gtest_brief=1"], env=None)
        return "caught" if tested.returncode else "survived"
    finally:
        source.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--only", default="", help="mutations whose name contains this")
    args = parser.parse_args()
    build = ROOT / args.build
    if run(["git", "diff", "--quiet", "--", "src"]).returncode:
        sys.exit("src/ has changes that are not committed: commit or stash them first")
    failed = 0
    for name, path, old, new, tests in MUTATIONS:
        if args.only not in name:
            continue
        start = time.monotonic()
        result = attempt(build, path, old, new, tests)
        failed += result != "caught"
        print(f"{result:9} {time.monotonic() - start:5.0f} s  {name}", flush=True)
    run(["cmake", "--build", str(build), "--target", "mechanisms_tests"])
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
