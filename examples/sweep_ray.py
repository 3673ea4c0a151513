"""Runs a sweep on a Ray cluster: every run is a Ray task, and all machines share its folder.

    pip install ray
    python examples/sweep_ray.py experiments/blurry-window/mqar.json --scale smoke --out /shared/mqar

Ray places the runs; the sweep's own claims keep two tasks from the same run, and a run whose machine dies continues
from its checkpoint when Ray tries again. At the end the table is printed."""

import argparse
import json
import subprocess

import ray


def command(options):
    words = [options.cortado, "sweep", options.file, "--out", options.out]
    return words + (["--scale", options.scale] if options.scale else [])


@ray.remote(num_cpus=1, max_retries=3)
def run(words, name):
    done = subprocess.run([*words, "--only", name, "--threads", "1"], capture_output=True, text=True)
    if done.returncode != 0:  # stopped early: Ray tries again
        raise RuntimeError(done.stderr.strip() or f"{name} ended with {done.returncode}")
    return name


def main():
    parser = argparse.ArgumentParser(description="A sweep as Ray tasks.")
    parser.add_argument("file")
    parser.add_argument("--scale", default="")
    parser.add_argument("--out", required=True)
    parser.add_argument("--cortado", default="cortado")
    parser.add_argument("--address", help="of the cluster; without it one is started here")
    parser.add_argument("--workers", type=int, help="of the one started here (default: a core each)")
    options = parser.parse_args()
    ray.init(address=options.address, num_cpus=options.workers, log_to_driver=False)
    words = command(options)
    listed = subprocess.run([*words, "--list", "--json"], capture_output=True, text=True, check=True)
    names = [entry["id"] for entry in json.loads(listed.stdout)]
    waiting = [run.remote(words, name) for name in names]
    while waiting:
        ended, waiting = ray.wait(waiting)
        print(f"{len(names) - len(waiting)} of {len(names)}: {ray.get(ended[0])}", flush=True)
    ray.shutdown()
    subprocess.run([*words, "--quiet"], check=True)  # only the table is left to do


if __name__ == "__main__":
    main()
