"""The README's first commands, unchanged. Only the port, the demo's folder and its number
of steps differ, and answers are short, so the tests take seconds."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from quick import quick

pytestmark = pytest.mark.mechanism("macchiato")  # the demo's model
ADDRESS = "http://127.0.0.1:8080"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


def section(path, begin, end):
    text = path.read_text()
    return text[text.index(begin) if begin else 0 : text.index(end)]


@pytest.fixture(scope="module", name="parts")
def fixture_parts(root):
    """Returns the documents' first commands: [(language, text), ...]."""
    readme, serving = root / "README.md", root / "docs/serving.md"
    texts = [section(readme, "## First steps", "## From Python"), section(serving, "", "## Endpoints")]
    return [BLOCK.findall(text) for text in texts]


@pytest.fixture(scope="module", name="make")
def fixture_make(root, build, tmp_path_factory):
    """make("demo"): the words of such a call, for which everything is set up and built."""
    folder = tmp_path_factory.mktemp("first")
    done = [word for name in ("configure", "program", ".venv/model.stamp") for word in ("-o", name)]
    variables = {"BUILD": build, "DEMO": folder / "demo", "SMOLLM2": folder / "smollm2", "PYTHON": sys.executable, "PORT": 0,
                 "DEMO_STEPS": 2, "DEMO_HELD_OUT": 2000, "SERVE": "--max-answer 40", "DEMO_MEMORY": folder / "memory",
                 "MEMORY_TOKENS": 700}  # fmt: skip
    words = ["make", "-C", str(root), "--no-print-directory", *done, *(f"{name}={value}" for name, value in variables.items())]
    return lambda target: [*words, target]


@pytest.fixture(scope="module", name="demo")
def fixture_demo(make):
    """Returns what `make demo` prints."""
    done = subprocess.run(make("demo"), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Serving:
    """Runs `make TARGET` of a server until the with statement ends."""

    def __init__(self, command, log):
        self.log = log
        with open(log, "w") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
                                            env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
        self.said = []
        while not self.said or not self.said[-1].startswith("  models"):
            line = self.process.stdout.readline()
            assert line, "".join(self.said) + log.read_text()
            self.said.append(line)
        self.address = next(line.split()[-1] for line in self.said if line.startswith("listening at "))

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.communicate(timeout=60)

    def paste(self, text):
        """Runs a block of shell lines; returns what each prints."""
        lines = [f"{line}\nprintf '\\n%s\\n' --next--" for line in text.splitlines() if not line.startswith("make ")]
        script = "\n".join(lines).replace(ADDRESS, self.address)
        done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, timeout=120, check=True)
        return [part.strip() for part in done.stdout.split("--next--")[:-1]]


def check_answer(printed):
    """Of curl: an object, or a stream of them; "" of a line that sets a variable."""
    if not printed:
        return
    for line in printed.splitlines():
        data = line.removeprefix("data: ")
        if line.startswith("event:") or not data or data == "[DONE]":
            continue
        answer = json.loads(data)
        assert "error" not in answer or answer["error"] is None, answer
        assert answer.get("status", "completed") in ("completed", "incomplete"), answer


@pytest.mark.parametrize("target", quick(["serve-demo"], "serve-demo", "serve-smollm2"))
def test_the_documents_first_calls(make, demo, parts, tmp_path, target):
    """Runs them with the demo's model, which has no chat template, and with SmolLM2."""
    with Serving(make(target), tmp_path / "log") as server:
        said = "".join(server.said)
        assert "Training" not in said  # the demo was trained
        assert ("continues texts" in said) == (target == "serve-demo")
        calls = 0
        for language, text in (block for part in parts for block in part):
            if language == "python":
                code = text.replace(ADDRESS, server.address)
                done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
                assert done.returncode == 0 and done.stdout.strip(), done.stderr
            elif "curl" in text:
                printed = server.paste(text)
                calls += len(printed)
                for one in printed:
                    check_answer(one)
        assert calls >= 5, "are the documents read rightly?"
        models = json.loads(server.paste(f"curl -s {ADDRESS}/v1/models")[0])["data"]
        assert [(it["id"], it["chat"]) for it in models] == [("run", None) if target == "serve-demo" else ("smollm2", "jinja")]


def test_a_conversation_goes_on_in_the_shell(make, demo, parts, tmp_path):
    """The second turn has read the first one's tokens."""
    text = next(text for language, text in parts[1] if language == "" and "previous_response_id" in text)
    with Serving(make("serve-demo"), tmp_path / "log") as server:
        second = json.loads(server.paste(text)[-1])
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > len("My name is Anna.")


def test_commands_that_the_demo_prints(make, demo, root, program):
    """At its end it shows the next commands; each can be pasted."""
    end = demo[demo.rindex("The model is in") :]
    commands = re.findall(r"^  (.*)$", end, re.M)
    assert [command.split()[0] for command in commands] == [str(program), "make"]
    assert commands[1] == "make serve-demo" and ADDRESS in end
    shown = re.findall(r"^\$ (.*)$", demo, re.M)
    assert len(shown) == 6 and all(command.startswith(f"{program} ") for command in shown)
    for command in [commands[0].replace("2000", "20"), shown[1]]:
        done = subprocess.run(["bash", "-ec", command], capture_output=True, text=True, cwd=root, timeout=120, check=False)
        assert done.returncode == 0 and done.stdout, done.stderr


def test_the_demo_is_trained_once(make, tmp_path):
    """Uses a program that logs how it is called."""
    asked = tmp_path / "asked"
    stub = tmp_path / "build" / "bin" / "cortado"
    stub.parent.mkdir(parents=True)
    stub.write_text(f'#!/bin/sh\necho "$1" >> {asked}\n[ "$1" != "$FAILS" ]\n')
    stub.chmod(0o755)

    def served(fails=""):
        asked.write_text("")
        command = [*make("serve-demo"), f"BUILD={tmp_path / 'build'}", f"DEMO={tmp_path / 'demo'}"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "FAILS": fails}, check=False)
        return done, asked.read_text().split()

    done, words = served(fails="train")  # as Ctrl-C would end it
    assert done.returncode != 0 and words[-1] == "train"
    done, words = served()
    assert done.returncode == 0 and "train" in words and words[-1] == "serve", done.stderr
    done, words = served()
    assert words == ["serve"] and "'make demo' trains it anew" in done.stdout


def test_the_readme_names_targets_that_there_are(parts, root):
    makefile = (root / "Makefile").read_text()
    named = {line.split()[1] for part in parts for _, text in part for line in text.splitlines() if line.startswith("make ")}
    assert {"demo", "serve-demo", "serve-smollm2", "test"} <= named
    assert all(re.search(rf"^{name}:", makefile, re.M) for name in named)


def test_the_program_is_where_the_readme_says(demo, parts, root, build, make):
    """After `export PATH` the program is called by its name."""
    text = next(text for language, text in parts[0] if "export PATH" in text)
    folder = next(word for word in make("x") if word.startswith("DEMO=")).removeprefix("DEMO=")
    text = text.replace("$PWD/build/release", str(build)).replace("build/demo", folder).replace("200", "20")
    done = subprocess.run(["bash", "-ec", text], capture_output=True, text=True, cwd=root, timeout=120, check=False)
    assert done.returncode == 0 and done.stdout, done.stderr


@pytest.mark.slow
def test_the_memory_demo_finds_its_number(make):
    """In a short text the cache finds what softmax finds, with less memory."""
    done = subprocess.run(make("demo-memory"), capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(\w[\w, ]+?) +([\d.,]+) MiB +[\d.]+  (yes|no) ", done.stdout, re.M)
    assert [row[0] for row in rows] == ["window, latents and cache", "window and latents", "softmax"], done.stdout
    assert [row[2] for row in rows][::2] == ["yes", "yes"]
    assert float(rows[0][1]) < 22 < float(rows[2][1])
