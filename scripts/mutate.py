"""Mutation testing: draws small changes of the mechanisms' and primitives' code, runs the tests with each, and lists the
changes that no test notices.

    python scripts/mutate.py --seed 1 --count 100           # draws, builds, runs; continues where it was stopped
    python scripts/mutate.py --seed 1 --count 100 --again   # after adding tests: runs the survivors again
    python scripts/mutate.py --seed 1 --count 100 --report  # prints the results so far
    python scripts/mutate.py --seed 1 2 --count 100         # one build for both; runs seed 2 when nothing of seed 1 survives

A copy of the sources in build/mutants contains all changes at once (see scripts/mutants.py), and CORTADO_MUTANT=N chooses one at
run time. Changes that do not compile are dropped before they count. Every mutant is run against the tests of its folder,
then its layer's, then all others, until the first failure. Results are lines of build/mutants/results-SEED.jsonl; a mutant
with a result is not run again. Changes that are equivalent to the original count separately; scripts/mutants-explained.json
has the reason for each. Exits with 1 if another one survives. If scripts/mutants.py or a source that changes are drawn from
changes, they are drawn again."""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import math
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading

import mutants

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "mutants"
COPY, BUILD = WORK / "source", WORK / "build"
SECONDS = WORK / "seconds.json"  # time limits of the test programs of these sources
EXPLAINED = ROOT / "scripts" / "mutants-explained.json"
MUTATED = re.compile(r"src/cortado/(mechanisms|primitives)/.*\.(cpp|h)")
# Code that calls a GPU's driver only runs on a GPU, in tests/cuda. The kernels themselves also run on the host.
NOT_MUTATED = re.compile(r"(_test|/reference|/registry|/python|on_gpu)\.(cpp|h)$|/primitives/cuda/")
PROGRAMS = ["primitives_tests", "emulated_tests", "mechanisms_tests", "nn_tests", "models_tests", "convert_tests"]
NUMBERS = 10_000  # mutant numbers per seed
MEMORY = 24 << 30  # so that a wrong size does not exhaust the machine's memory


def run(command, **options):
    options.setdefault("cwd", ROOT)
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)


def listed_files():
    listed = run(["git", "ls-files", "-co", "--exclude-standard"]).stdout.splitlines()
    return [file for file in listed if (ROOT / file).is_file()]


def mutated_files(files, only):
    return [f for f in files if MUTATED.fullmatch(f) and not NOT_MUTATED.search(f) and re.search(only, f)]


# --- Drawing. ---


def draw(texts, seeds, count):
    """Returns {number: (file, change)}: `count` changes per seed at random places, none within another. Those of seed 2 are
    numbered from 20,001."""
    everywhere = [(file, changes) for file in sorted(texts) for changes in mutants.places(texts[file]).values()]
    drawn, taken = {}, {file: [] for file in texts}
    for seed in seeds:
        chooser = random.Random(seed)
        order = chooser.sample(everywhere, len(everywhere))
        number, last = seed * NUMBERS, seed * NUMBERS + count
        for file, changes in order:
            if number == last:
                break
            change = chooser.choice(changes)
            if any(change.start < end and start < change.end for start, end in taken[file]):
                continue
            number += 1
            taken[file].append((change.start, change.end))
            drawn[number] = (file, change)
    return drawn


def of_seed(drawn, seed, count):
    """Returns a seed's first `count` changes; spare ones are not run."""
    return dict([(n, found) for n, found in drawn.items() if n // NUMBERS == seed][:count])


def write_if_new(path, data):
    if not path.exists() or path.read_bytes() != data:
        SECONDS.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def write_sources(texts, drawn):
    """Writes the mutated files. Returns {file: {number: lines}}."""
    lines = {}
    for file, text in texts.items():
        own = {number: change for number, (at, change) in drawn.items() if at == file}
        if own:
            text, lines[file] = mutants.with_mutants(text, own)
        write_if_new(COPY / file, text.encode())
    return lines


def copy_tree(files):
    """Copies the other files unchanged."""
    header = "src/cortado_mutant.h"
    building = re.findall(r"scripts/\w+\.py", (ROOT / "CMakeLists.txt").read_text())  # scripts that the build runs
    for path in [p for p in (COPY / "src").rglob("*") if p.is_file()]:
        if path.relative_to(COPY).as_posix() not in [*files, header]:  # deleted since; it would still be compiled
            path.unlink()
    for file in files:
        if not mutated_files([file], "") and (not file.startswith("scripts/") or file in building):  # tests do not read other scripts
            write_if_new(COPY / file, (ROOT / file).read_bytes())
    write_if_new(COPY / header, mutants.HEADER.encode())


# --- Building. ---


def prepare(args):
    """Draws and builds, unless that is done already. Returns {number: (file, change)}."""
    files = listed_files()
    texts = {f: (ROOT / f).read_text(encoding="utf-8") for f in mutated_files(files, "")}
    drawn_from = {f: text for f, text in texts.items() if re.search(args.only, f)}
    reader = pathlib.Path(mutants.__file__).read_text(encoding="utf-8")
    key = hashlib.sha256(json.dumps([args.seed, args.count, args.only, texts, reader]).encode()).hexdigest()
    plan = WORK / "plan.json"
    if plan.exists() and (known := json.loads(plan.read_text()))["key"] == key:
        drawn = {int(n): (file, mutants.Change(**change)) for n, (file, change) in known["mutants"].items()}
    elif args.report:
        sys.exit(f"[mutate] nothing is known of seed {args.seed} and these sources")
    else:
        for seed in args.seed:
            results_of(seed).unlink(missing_ok=True)
        drawn = draw(drawn_from, args.seed, math.ceil(args.count * args.spare))
    if args.report:
        return drawn
    copy_tree(files)
    drawn = build(texts, drawn, args)
    listed = {number: (file, vars(change)) for number, (file, change) in drawn.items()}
    plan.write_text(json.dumps({"key": key, "mutants": listed}, indent=1))
    return drawn


def build(texts, drawn, args):
    """Builds the programs, and drops mutants that do not compile. Returns the others."""
    lines = write_sources(texts, drawn)
    configure()
    while True:
        print(f"building with {len(drawn)} mutants", flush=True)
        done = run(["cmake", "--build", BUILD, "-j", str(args.jobs), "--target", "cortado_ops", *args.programs, "--",
                    "-k", "0"])  # fmt: skip
        if done.returncode == 0:
            return drawn
        bad = set().union(*(broken(output, lines) for output in done.stdout.split("\nFAILED: ")[1:]))
        if not bad or len(bad) == len(drawn):
            sys.exit(f"the build fails:\n{done.stdout[-4000:]}")
        drawn = {number: found for number, found in drawn.items() if number not in bad}
        lines = write_sources(texts, drawn)


def broken(output, lines):
    """Returns the mutants that the errors of one compilation are about."""
    for pattern in (r":(\d+):\d+: (?:fatal )?error", r":(\d+)[:,]"):
        found = set()
        for file, own in lines.items():
            for line in re.findall(re.escape(str(COPY / file)) + pattern, output):
                found |= {number for number, at in own.items() if int(line) in at}
        if found:
            return found
    named = [file for file in lines if str(COPY / file) in output]
    errors = "\n".join(re.findall(r".*\berror\b.*", output)[:5])
    print(f"a complaint that names no mutant; all of {named} are dropped:\n{errors}")
    return {number for file in named for number in lines[file]}


def configure():
    python = os.environ.get("CORTADO_MUTANTS_PYTHON", str(ROOT / ".venv/bin/python"))
    done = run(["cmake", "-S", COPY, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS=-w",
                f"-DCORTADO_PYTHON:FILEPATH={python}"])  # fmt: skip
    if done.returncode:
        sys.exit(f"no build folder:\n{done.stdout[-4000:]}")


# --- Running. ---


def run_tests(command, number, seconds):
    """Runs tests. Returns whether they passed, how they ended, and their processor time. The limit `seconds` is also processor
    time, because others may use the machine."""
    environment = {**os.environ, "CORTADO_MUTANT": str(number), "OMP_NUM_THREADS": "1", "GTEST_FAIL_FAST": "1",
                   "GTEST_BRIEF": "1", "CORTADO_BUILD": str(BUILD), "CORTADO_SOURCE": str(COPY),
                   "CORTADO_BIN": str(BUILD / "bin" / "cortado")}  # fmt: skip

    def limits():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, cwd=COPY, env=environment, stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True, preexec_fn=limits)  # fmt: skip
        waits = threading.Timer(60 + 20 * seconds, lambda: os.killpg(process.pid, signal.SIGKILL))
        waits.start()
        _, status, used = os.wait4(process.pid, 0)
        waits.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        failed = re.findall(r"^(?:\[  FAILED  \]|FAILED) (\S+)", output.read(), re.M)
    how = failed[0] if failed else f"exit code {process.returncode}"
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        how = f"no end in {seconds} s"
    return process.returncode == 0, how, used.ru_utime + used.ru_stime


@functools.cache
def targets():
    """Returns {file: targets that it is compiled into}, as the compilers recorded it."""
    found, target = {}, ""
    for line in run(["ninja", "-C", BUILD, "-t", "deps"]).stdout.splitlines():
        if line.startswith(" "):
            found.setdefault(line.strip(), set()).add(target)
        elif holds := re.search(r"(\w+)\.dir/", line):
            target = holds[1]
    return found


def own_filter(layer, folder):
    """Returns a filter for the tests in a folder's files, and for others that have its name."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src/cortado" / layer / folder).rglob("*_test.cpp")]
    suites = {suite for text in texts for suite in re.findall(r"^(?:TYPED_)?TEST(?:_\w)?\((\w+)", text, re.M)}
    camel = "".join(word.capitalize() for word in folder.split("_"))
    return ":".join([f"*{folder}*", f"*{camel}*", *(f"*{suite}.*" for suite in sorted(suites))])


def stages(file, programs):
    """Returns (name, command) of the tests of a file, beginning with those that most probably notice a change: its folder's,
    those of mechanisms that use it, then the others. Files that are only part of test programs (GPU kernels, which these
    run on the host) get only the tests of these."""
    _, _, layer, *rest = file.split("/")
    inside = targets().get(str(COPY / file), set())
    tests_alone = bool(inside) and inside <= set(programs)
    programs = [name for name in programs if name in inside or not tests_alone]
    own, found = f"{layer}_tests", []
    below = ("primitives_tests", "nn_tests") if layer == "mechanisms" else ()
    order = ["mechanisms_tests", own, *programs]
    left = {name: [BUILD / "bin" / name] for name in order if name in programs and name not in below}
    if len(rest) > 1 and rest[0] not in ("kernels", "shared") and own in programs:  # these folders have no tests of their own
        first = own_filter(layer, rest[0])
        found.append((f"{own} {rest[0]}", [*left[own], f"--gtest_filter={first}"]))
        left[own].append(f"--gtest_filter=-{first}")
    elif own in left:
        found.append((own, left.pop(own)))
    found += left.items()
    if tests_alone:
        return found
    python = os.environ.get("CORTADO_MUTANTS_PYTHON", str(ROOT / ".venv/bin/python"))
    pytest = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/python"]
    if re.search("kernel|-inl", rest[-1]):  # kernels are not involved in tests of torch.compile
        pytest += ["-k", "not opcheck and not compile and not meta"]
    return [*found, ("tests/python", pytest)]


def baseline(args):
    """Returns {program: time limit in seconds}: three times its time without a mutant, when all tests must pass."""
    seconds = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    todo = [(name, command) for name, command in stages("src/cortado/primitives/common.h", args.programs)
            if name not in seconds]  # fmt: skip

    def one(item):
        passed, how, took = run_tests(item[1], 0, 7200)
        print(f"{took:6.0f} s  {item[0]} without a mutant{'' if passed else ': ' + how}", flush=True)
        return item[0], math.ceil(20 + 3 * took), passed

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for name, limit, passed in pool.map(one, todo):
            if not passed:
                sys.exit(f"[{name}] fails without any mutant")
            seconds[name] = limit
    SECONDS.write_text(json.dumps(seconds))
    return seconds


def killer(number, todo, seconds):
    """Returns which of the tests notices a mutant, or ""."""
    for name, command in todo:
        passed, how, _ = run_tests(command, number, seconds[name.split(" ")[0]])
        if not passed:
            return f"{name}: {how}"
    return ""


def place_of(file, change):
    """Returns a change's line and its code, with the change in «»."""
    text = (ROOT / file).read_text(encoding="utf-8")
    first, last = text.rfind("\n", 0, change.start) + 1, text.find("\n", change.end)
    code = f"{text[first:change.start]}«{change.before}»{text[change.end:last]}"
    return {"line": text.count("\n", 0, change.start) + 1, "code": one_line(code).strip()}


def results_of(seed):
    return WORK / f"results-{seed}.jsonl"


def known_results(seed, drawn):
    """Returns the last result of each mutant."""
    path = results_of(seed)
    lines = path.read_text().splitlines() if path.exists() else []
    return {r["mutant"]: r for r in map(json.loads, lines) if r["mutant"] in drawn}


def run_all(left, args, seed, seconds):
    """Runs every mutant against its own tests, and then unexplained survivors against all other tests."""
    lock, entries = threading.Lock(), explained()

    def result_of(number, by):
        file, change = left[number]
        return {"mutant": number, "file": file, **place_of(file, change), **vars(change),
                "result": "killed" if by else "survived", "by": by}  # fmt: skip

    def note(number, by):
        result = result_of(number, by)
        with lock, results_of(seed).open("a") as lines:
            lines.write(json.dumps(result) + "\n")
        print(describe(result), flush=True)

    def own_tests(number):
        file, change = left[number]
        by = killer(number, stages(file, args.programs)[:1], seconds)
        alive = result_of(number, by)
        if by or explanation(alive, entries):
            note(number, by)
            return False
        print(f"not yet  {describe(alive)[9:]}  {number}", flush=True)
        return True

    def other_tests(number):
        note(number, killer(number, stages(left[number][0], args.programs)[1:], seconds))

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        alive = [number for number, lives in zip(left, pool.map(own_tests, left)) if lives]
        list(pool.map(other_tests, alive))


# --- Reporting. ---


def one_line(text):
    return re.sub(r"\s+", " ", text)


def describe(r):
    what = f"{one_line(r['before'])}  =>  {one_line(r['after']) or '(nothing)'}"
    return f"{r['result']:8} {r['file']}:{r['line']}  [{r['kind']}] {what}" + (f"   {r['by']}" if r["by"] else "")


def explained():
    return json.loads(EXPLAINED.read_text())


def explanation(result, entries):
    """Returns why a mutant is equivalent to the original, or ""."""
    for entry in entries:
        same = all(one_line(result[key]) == entry[key] for key in ("file", "code", "after"))
        if same:
            return entry["why"]
    return ""


def report(seed, results):
    """Prints the score. Returns the number of survivors without an explanation."""
    entries = explained()
    alive = [r for r in results if r["result"] == "survived"]
    open_ones = [r for r in alive if not explanation(r, entries)]
    for r in alive:
        why = explanation(r, entries)
        print(describe(r) + (f"\n         the same: {why}" if why else ""))
    same = len(alive) - len(open_ones)
    counted = len(results) - same
    killed = counted - len(open_ones)
    print(f"seed {seed}: {killed} of {counted} caught" + (f" ({killed / counted:.1%})" if counted else "")
          + f"; {same} more are the same program in other words", flush=True)  # fmt: skip
    return len(open_ones)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--count", type=int, default=100, help="mutants per seed")
    parser.add_argument("--spare", type=float, default=1.5, help="draw this many times the count, because some do not compile")
    parser.add_argument("--only", default="", help="only files whose path matches this expression")
    parser.add_argument("--programs", nargs="*", default=PROGRAMS, help="test programs; none: only Python's tests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--again", action="store_true", help="run the survivors again")
    parser.add_argument("--go-on", action="store_true", help="run the next seed even if something survives this one")
    parser.add_argument("--report", action="store_true", help="print the results so far, run nothing")
    args = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    everything, seconds, failed = prepare(args), {}, False
    for seed in args.seed:
        drawn = of_seed(everything, seed, args.count)
        known = known_results(seed, drawn)
        again = [n for n, r in known.items() if r["result"] == "survived" and not explanation(r, explained())]
        left = {n: found for n, found in drawn.items() if n not in known or args.again and n in again}
        if left and not args.report:
            seconds = seconds or baseline(args)
            run_all(left, args, seed, seconds)
        known = known_results(seed, drawn)
        failed |= report(seed, list(known.values())) > 0 or len(known) < len(drawn)
        if failed and not args.go_on and not args.report:
            break
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
