"""Can the tests fail? Draws small changes of the mechanisms' and primitives' code, one a test run, and lists those that
no test notices.

    python scripts/mutate.py --seed 1 --count 100           # draws, builds, runs; goes on where it was stopped
    python scripts/mutate.py --seed 1 --count 100 --report  # what is known so far

A copy of the sources in build/mutants holds all changes at once (scripts/mutants.py says how); CORTADO_MUTANT=N chooses
one when a program runs. What does not compile is dropped before it counts. Every mutant is run against the tests of its
own folder, then its layer's, then everything; results are lines of build/mutants/results-SEED.jsonl, and a mutant that
has one is not run again. Changes that cannot be told from the original, in scripts/mutants-explained.json with a reason
each, count apart. Ends with 1 when another survives. When a source changed, the draw is made anew."""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shlex
import signal
import subprocess
import sys
import threading
import time

import mutants

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "mutants"
COPY, BUILD = WORK / "source", WORK / "build"
EXPLAINED = ROOT / "scripts" / "mutants-explained.json"
MUTATED = re.compile(r"src/cortado/(mechanisms|primitives)/.*\.(cpp|h)")
NOT_MUTATED = re.compile(r"(_test|/reference|/registry|/python)\.(cpp|h)$")
PROGRAMS = ["primitives_tests", "mechanisms_tests", "nn_tests", "models_tests", "convert_tests"]
MEMORY = 24 << 30  # a wrong size must not take the machine down


def run(command, **options):
    options.setdefault("cwd", ROOT)
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)


def listed_files():
    listed = run(["git", "ls-files", "-co", "--exclude-standard"]).stdout.splitlines()
    return [file for file in listed if (ROOT / file).is_file()]


def mutated_files(files, only):
    return [f for f in files if MUTATED.fullmatch(f) and not NOT_MUTATED.search(f) and re.search(only, f)]


# --- Drawing. ---


def draw(texts, seed, count):
    """Number -> (file, change): `count` of them, of places drawn at random, none within another."""
    everywhere = [(file, changes) for file in sorted(texts) for changes in mutants.places(texts[file]).values()]
    chooser = random.Random(seed)
    chooser.shuffle(everywhere)
    drawn, taken = {}, {}
    for file, changes in everywhere:
        change = chooser.choice(changes)
        if any(change.start < end and start < change.end for start, end in taken.setdefault(file, [])):
            continue
        taken[file].append((change.start, change.end))
        drawn[len(drawn) + 1] = (file, change)
        if len(drawn) == count:
            break
    return drawn


def write_if_new(path, text):
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def write_sources(texts, drawn):
    """Writes the mutated files; returns file -> number -> lines."""
    lines = {}
    for file, text in texts.items():
        own = {number: change for number, (at, change) in drawn.items() if at == file}
        if own:
            text, lines[file] = mutants.with_mutants(text, own)
        write_if_new(COPY / file, text)
    return lines


def copy_tree(files):
    for path in [p for p in (COPY / "src").rglob("*") if p.is_file()]:
        if path.relative_to(COPY).as_posix() not in files:  # gone since: it would be compiled
            path.unlink()
    for file in files:
        source, to = ROOT / file, COPY / file
        if not MUTATED.fullmatch(file):
            data = source.read_bytes()
            if not to.exists() or to.read_bytes() != data:
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(data)
    write_if_new(COPY / "src" / "cortado_mutant.h", mutants.HEADER)


# --- Dropping what does not compile. ---


def includes_of(path, known):
    """Every file of the copy that a file includes, itself too."""
    if path not in known:
        known[path] = {path}
        for name in re.findall(r'^\s*#include "([^"]+)"', path.read_text(encoding="utf-8"), re.M):
            target = pathlib.Path(name) if name.startswith("/") else COPY / "src" / name
            if target.is_file():
                known[path] |= includes_of(target, known)
    return known[path]


def units(files):
    """The compilations that see one of the files: (command, folder, which files)."""
    wanted, known, found = {COPY / f for f in files}, {}, []
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        seen = wanted & includes_of(pathlib.Path(entry["file"]), known)
        if not seen:
            continue
        words = shlex.split(entry["command"])
        for option in ("-o", "-c"):
            del words[words.index(option) : words.index(option) + 2]
        found.append(([*words, "-fsyntax-only", entry["file"]], entry["directory"], seen))
    return found


def broken(output, seen, lines):
    """The mutants that a compiler's complaints are about."""
    for pattern in (r":(\d+):\d+: (?:fatal )?error", r":(\d+)[:,]"):
        found = set()
        for path in seen:
            file = path.relative_to(COPY).as_posix()
            for line in re.findall(re.escape(str(path)) + pattern, output):
                found |= {number for number, at in lines.get(file, {}).items() if int(line) in at}
        if found:
            return found
    files = {path.relative_to(COPY).as_posix() for path in seen}
    print(f"a complaint that names no mutant; all of {sorted(files)} are dropped:\n{output[:1500]}")
    return {number for file in files for number in lines.get(file, {})}


def drop_broken(texts, drawn, jobs):
    """Compiles without making code until every mutant left does; returns those."""
    changed = {file for file, _ in drawn.values()}
    while True:
        lines = write_sources(texts, drawn)
        todo = units(changed)
        print(f"{len(drawn)} mutants; compiling {len(todo)} units", flush=True)
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            done = list(pool.map(lambda unit: run(unit[0], cwd=unit[1]), todo))
        bad = set()
        for result, (_, _, seen) in zip(done, todo):
            if result.returncode:
                bad |= broken(result.stdout, seen, lines)
        if not bad:
            return drawn
        changed = {drawn[number][0] for number in bad}
        drawn = {number: found for number, found in drawn.items() if number not in bad}


# --- Building. ---


def must(command, **options):
    done = run(command, **options)
    if done.returncode:
        sys.exit(f"{shlex.join(map(str, command))}\n{done.stdout[-4000:]}")


def prepare(args):
    """Draws and builds, unless that is done; returns number -> (file, change)."""
    files = listed_files()
    texts = {f: (ROOT / f).read_text(encoding="utf-8") for f in files if MUTATED.fullmatch(f)}
    drawn_from = {f: texts[f] for f in mutated_files(files, args.only)}
    key = hashlib.sha256(json.dumps([args.seed, args.count, args.only, texts]).encode()).hexdigest()
    plan = WORK / f"plan-{args.seed}.json"
    if plan.exists() and (known := json.loads(plan.read_text()))["key"] == key:
        drawn = {int(n): (file, mutants.Change(**change)) for n, (file, change) in known["mutants"].items()}
    elif args.report:
        sys.exit(f"[mutate] nothing is known of seed {args.seed} and these sources")
    else:
        (WORK / f"results-{args.seed}.jsonl").unlink(missing_ok=True)
        copy_tree(files)
        write_sources(texts, {})
        configure()
        drawn = drop_broken(texts, draw(drawn_from, args.seed, args.count * args.spare), args.jobs)
        drawn = dict(list(drawn.items())[: args.count])
        save_plan(plan, key, drawn)
    if not args.report:
        drawn = build(texts, drawn, args)
        save_plan(plan, key, drawn)
    return drawn


def save_plan(plan, key, drawn):
    listed = {number: (file, vars(change)) for number, (file, change) in drawn.items()}
    plan.write_text(json.dumps({"key": key, "mutants": listed}, indent=1))


def build(texts, drawn, args):
    """Builds the programs; drops what only the making of code finds wrong. Returns the mutants left."""
    command = ["cmake", "--build", BUILD, "-j", str(args.jobs), "--target", "cortado_ops", *args.programs]
    while True:
        lines = write_sources(texts, drawn)
        print(f"building with {len(drawn)} mutants", flush=True)
        done = run(command)
        if done.returncode == 0:
            return drawn
        bad = broken(done.stdout, {COPY / file for file in lines}, lines)
        if not bad or len(bad) == len(drawn):
            sys.exit(f"the build fails:\n{done.stdout[-4000:]}")
        drawn = {number: found for number, found in drawn.items() if number not in bad}


def configure():
    python = os.environ.get("CORTADO_MUTANTS_PYTHON", str(ROOT / ".venv/bin/python"))
    must(["cmake", "-S", COPY, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS=-w",
          f"-DCORTADO_PYTHON:FILEPATH={python}"])  # fmt: skip
    must(["cmake", "--build", BUILD, "--target", "cortado_pch"])


# --- Running. ---


def run_tests(command, number, seconds):
    """(whether they passed, how they ended)"""
    environment = {**os.environ, "CORTADO_MUTANT": str(number), "OMP_NUM_THREADS": "1", "GTEST_FAIL_FAST": "1",
                   "GTEST_BRIEF": "1", "CORTADO_BUILD": str(BUILD), "CORTADO_SOURCE": str(COPY),
                   "CORTADO_BIN": str(BUILD / "bin" / "cortado")}  # fmt: skip
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # noqa: E731
    process = subprocess.Popen(command, cwd=COPY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", start_new_session=True, preexec_fn=limit)  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False, f"no end after {seconds:.0f} s"
    failed = re.findall(r"^(?:\[  FAILED  \]|FAILED) (\S+)", output, re.M)
    return process.returncode == 0, failed[0] if failed else f"exit code {process.returncode}"


def stages(file, programs):
    """(name, command) of the tests of a file, those that most likely notice first."""
    _, _, layer, *rest = file.split("/")
    stem = rest[0] if len(rest) > 1 else ""
    camel = "".join(word.capitalize() for word in stem.split("_"))
    own = f"{layer}_tests"
    found = []
    if stem and own in programs:
        found = [(f"{own} {stem}", [BUILD / "bin" / own, f"--gtest_filter=*{stem}_*:*{camel}*"])]
    order = [own, *(p for p in programs if p != own)]
    found += [(program, [BUILD / "bin" / program]) for program in order if program in programs]
    python = os.environ.get("CORTADO_MUTANTS_PYTHON", str(ROOT / ".venv/bin/python"))
    return [*found, ("tests/python", [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/python"])]


def baseline(programs):
    """Program -> seconds without a mutant; all must pass."""
    times = {}
    for name, command in stages("src/cortado/primitives/common.h", programs):
        start = time.monotonic()
        passed, how = run_tests(command, 0, 7200)
        times[name] = time.monotonic() - start
        if not passed:
            sys.exit(f"[{name}] fails without any mutant: {how}")
        print(f"{times[name]:6.0f} s  {name} without a mutant", flush=True)
    return times


def attempt(number, file, change, programs, times):
    """One mutant's line of the results."""
    start = time.monotonic()
    result = {"mutant": number, "file": file, "line": line_of(file, change), **vars(change)}
    for name, command in stages(file, programs):
        passed, how = run_tests(command, number, 60 + 8 * times[name.split(" ")[0]])
        if not passed:
            return {**result, "result": "killed", "by": f"{name}: {how}", "seconds": round(time.monotonic() - start)}
    return {**result, "result": "survived", "by": "", "seconds": round(time.monotonic() - start)}


def line_of(file, change):
    return (ROOT / file).read_text(encoding="utf-8").count("\n", 0, change.start) + 1


def known_results(path):
    return {r["mutant"]: r for r in map(json.loads, path.read_text().splitlines())} if path.exists() else {}


def run_all(drawn, args, path):
    left = {n: found for n, found in drawn.items() if n not in known_results(path)}
    if not left:
        return
    times, lock = baseline(args.programs), threading.Lock()

    def one(item):
        number, (file, change) = item
        result = attempt(number, file, change, args.programs, times)
        with lock, path.open("a") as lines:
            lines.write(json.dumps(result) + "\n")
            print(f"{result['seconds']:5} s  {describe(result)}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, left.items()))


# --- Reporting. ---


def one_line(text):
    return re.sub(r"\s+", " ", text)


def describe(r):
    what = f"{one_line(r['before'])}  =>  {one_line(r['after']) or '(nothing)'}"
    return f"{r['result']:8} {r['file']}:{r['line']}  [{r['kind']}] {what}" + (f"   {r['by']}" if r["by"] else "")


def explanation(result, explained):
    """Why a mutant cannot be told from the original, or ""."""
    for entry in explained:
        same = all(one_line(result[key]) == entry[key] for key in ("file", "before", "after"))
        if same:
            return entry["why"]
    return ""


def report(results):
    """Prints the score; returns the number of survivors without an explanation."""
    explained = json.loads(EXPLAINED.read_text())
    alive = [r for r in results if r["result"] == "survived"]
    open_ones = [r for r in alive if not explanation(r, explained)]
    for r in alive:
        why = explanation(r, explained)
        print(describe(r) + (f"\n         the same: {why}" if why else ""))
    same = len(alive) - len(open_ones)
    counted = len(results) - same
    killed = counted - len(open_ones)
    print(f"{killed} of {counted} caught" + (f" ({killed / counted:.1%})" if counted else "")
          + f"; {same} more are the same program in other words")  # fmt: skip
    return len(open_ones)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--spare", type=int, default=2, help="draw this many times the count: some do not compile")
    parser.add_argument("--only", default="", help="of files whose path matches this expression")
    parser.add_argument("--programs", nargs="*", default=PROGRAMS, help="test programs; none: Python's tests alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--report", action="store_true", help="print what is known, run nothing")
    args = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    path = WORK / f"results-{args.seed}.jsonl"
    drawn = prepare(args)
    if not args.report:
        run_all(drawn, args, path)
    results = [r for r in known_results(path).values() if r["mutant"] in drawn]
    sys.exit(1 if report(results) or len(results) < len(drawn) else 0)


if __name__ == "__main__":
    main()
