"""`cortado train` and `cortado compare` from outside: exit codes, messages, and that nothing is lost."""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess

import pytest
from until import wait_until

CONFIG = {
    "dim": 16,
    "heads": 2,
    "layers": 2,
    "mixer": {"mixer": "latte", "latents": 8},
    "feed_forward": {"type": "swiglu", "dim": 24},
    "dropout": 0.1,
    "training": {"tokenizer": "char", "batch": 2, "context": 16, "steps": 6, "warmup": 2, "evaluate_every": 3},
}


@pytest.fixture
def work(tmp_path):
    """A folder with a small text and a small config."""
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 60, encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return tmp_path


def arguments(work, *more, out="run"):
    return ["train", work / "config.json", "--data", work / "text.txt", "--out", work / out, "--threads", "1", *more]


def tensors(path):
    """Returns {name: bytes} of a safetensors file, without its metadata, which has the time spent."""
    raw = path.read_bytes()
    header_size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + header_size])
    body = raw[8 + header_size :]
    return {k: body[slice(*v["data_offsets"])] for k, v in header.items() if k != "__metadata__"}


def test_trains_and_resumes_exactly(cortado, program, work):
    done = cortado(*arguments(work))
    assert done.returncode == 0, done.stderr
    assert "validation loss" in done.stdout
    run = work / "run"
    assert {p.name for p in run.iterdir()} >= {
        "config.json",
        "tokenizer",
        "trainer.safetensors",
        "last.safetensors",
        "best.safetensors",
        "metrics.jsonl",
        "train.json",
    }
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "validation_loss" in line] == [3, 6]

    words = [program, *map(str, arguments(work, "--stop-at", 4, out="parts"))]  # no fork, whose name is another
    stopped = subprocess.run(words, capture_output=True, text=True, check=True)
    command = shlex.split(stopped.stdout.strip().splitlines()[-1])
    assert command[1:3] == ["train", "--resume"]
    resumed = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert resumed.returncode == 0, resumed.stderr
    assert tensors(work / "parts" / "trainer.safetensors") == tensors(run / "trainer.safetensors")


def test_starts_from_a_run_whose_name_is_a_number(cortado, work):
    assert cortado(*arguments(work, out="123")).returncode == 0
    done = cortado("train", "123", "--data", "text.txt", "--out", "next", "--set", "training.seed=4", cwd=work)
    assert done.returncode == 0, done.stderr
    config = json.loads((work / "next" / "config.json").read_text())
    assert config["training"]["base"] == str(work / "123")


@pytest.mark.parametrize("sent, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(cortado_program, work, sent, code):
    command = [cortado_program, *map(str, arguments(work, "--steps", 1000000))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: (work / "run" / "trainer.safetensors").exists())
        process.send_signal(sent)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == code
    assert "--resume" in output.splitlines()[-1]
    stands = json.loads((work / "run" / "train.json").read_text())
    assert f"stopped after step {stands['step']} of 1000000" in output


@pytest.fixture(scope="session")
def cortado_program(build):
    return str(build / "bin" / "cortado")


def test_a_folder_in_use_is_left_alone(cortado, refused, work):
    assert cortado(*arguments(work)).returncode == 0
    before = (work / "run" / "trainer.safetensors").read_bytes()
    assert "--resume" in refused(*arguments(work))
    assert (work / "run" / "trainer.safetensors").read_bytes() == before
    assert cortado(*arguments(work, "--overwrite", "--seed", 5)).returncode == 0
    assert (work / "run" / "trainer.safetensors").read_bytes() != before

    (work / "mine").mkdir()
    (work / "mine" / "thesis.tex").write_text("x")
    for flags in ([], ["--overwrite"]):
        assert "thesis.tex" in refused(*arguments(work, *flags, out="mine"))
    assert (work / "mine" / "thesis.tex").read_text() == "x"
    assert "there is no run" in refused("train", "--resume", "--out", work / "nowhere")


def test_two_processes_in_one_folder(cortado_program, refused, work):
    command = [cortado_program, *map(str, arguments(work, "--steps", 1000000))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: (work / "run" / "trainer.safetensors").exists())
            assert "another process" in refused("train", "--resume", "--out", work / "run")
        finally:
            process.kill()


def test_a_folder_that_cannot_be_written(refused, work):
    (work / "file").write_text("x")
    refused(*arguments(work, out="file"))
    refused(*arguments(work, out="file/below"))
    if os.geteuid() != 0:  # root may write anywhere
        (work / "closed").mkdir(mode=0o500)
        refused(*arguments(work, out="closed/run"))


def test_a_full_disk_keeps_the_last_checkpoint(cortado, refused, work):
    """A file size limit imitates a full disk: the kernel refuses the write in the same way."""
    assert cortado(*arguments(work, "--stop-at", 2)).returncode == 0
    run = work / "run"
    before = tensors(run / "trainer.safetensors")
    line = refused("train", "--resume", "--out", run, code=1, preexec_fn=limit_file_size)
    assert "trainer.safetensors" in line or "best.safetensors" in line
    assert tensors(run / "trainer.safetensors") == before
    assert not [p for p in run.iterdir() if ".tmp" in p.name]
    assert cortado("train", "--resume", "--out", run).returncode == 0


def limit_file_size():
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))


@pytest.mark.parametrize(
    "settings, expected",
    [
        (["training.stepps=3"], 'did you mean "steps"'),
        (["dmi=3"], 'did you mean "dim"'),
        (["training.batch=many"], "training"),
        (["training.batch=0"], "batch"),
        (["heads=3"], "heads"),
        (["mixer.mixer=late"], 'did you mean "latte"'),
        (["training.schedule=sine"], "cosine"),
        (["training.warmup=5", "training.decay_steps=3"], "decay_steps"),
        (["training.context=100000"], "too short"),
        (["positions=learned", "context=8"], "context"),
        (["training.tokenizer=words"], "words"),
        (["training.steps"], "training.steps"),
    ],
)
def test_bad_settings(refused, work, settings, expected):
    flags = [word for setting in settings for word in ("--set", setting)]
    line = refused(*arguments(work, *flags))
    assert expected in line, line
    assert not (work / "run").exists()


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("empty.txt", b"", "empty"),
        ("binary.txt", b"ab\0cd" * 100, "binary"),
        ("latin1.txt", "caf\xe9 ".encode("latin-1") * 100, "UTF-8"),
        ("short.txt", b"short", "too short"),
        ("missing.txt", None, "missing.txt"),
    ],
)
def test_bad_texts(refused, work, name, content, expected):
    if content is not None:
        (work / name).write_bytes(content)
    line = refused("train", work / "config.json", "--data", work / name, "--out", work / "run")
    assert expected in line, line
    assert not (work / "run").exists()


def test_bad_configs(refused, work):
    bad = work / "bad.json"
    bad.write_text('{"dim": 16,,}')
    assert "bad.json" in refused("train", bad, "--out", work / "run")
    assert "none.json" in refused("train", work / "none.json", "--out", work / "run")
    assert "CONFIG" in refused("train", "--out", work / "run")


def test_bad_usage(cortado, refused, work):
    assert 'did you mean "train"' in refused("trian")
    assert "--resume" in refused(*arguments(work, "--resmue"))
    assert "--out" in refused("train", work / "config.json")
    assert "device" in refused(*arguments(work, "--device", "quantum"))
    refused(*arguments(work, "--threads", "-1"))
    refused(*arguments(work, "--dtype", "float8"))
    refused(*arguments(work, "--resume", "--overwrite"))
    alone = cortado()
    assert alone.returncode == 0 and "train" in alone.stdout
    for command in ("train", "compare"):
        helped = cortado(command, "--help")
        assert helped.returncode == 0 and "Examples:" in helped.stdout
        assert re.match(r"cortado \d+\.\d+\.\d+( \([0-9a-f]{10}\+?\))?\n$", cortado(command, "--version").stdout)


def test_a_loss_that_is_not_finite(cortado, refused, work):
    flags = ["--set", "training.learning_rate=1000", "--set", "training.clip=0", "--set", "training.beta2=0.5"]
    flags += ["--set", "training.warmup=0", "--steps", 5000, "--set", "dropout=0", "--set", "norm=layer"]
    config = json.loads((work / "config.json").read_text())
    config["mixer"] = {"mixer": "linear", "feature_map": "relu", "normalize": False, "gate": False}
    (work / "config.json").write_text(json.dumps(config))
    line = refused(*arguments(work, *flags), code=1)
    assert re.search(r"(loss|gradient) is -?(nan|inf) at step \d+", line), line
    kept = int(re.search(r"checkpoint of step (\d+)", line).group(1))
    assert json.loads((work / "run" / "train.json").read_text())["step"] == kept
    assert cortado("describe", work / "run").returncode == 0


def test_compare_survives_interruption(cortado, refused, work):
    command = ["compare", "--config", work / "config.json", "--data", work / "text.txt", "--out", work / "compare"]
    command += ["--steps", 4, "--depths", "8,300", "--threads", 1]
    assert 'did you mean "latte"' in refused(*command, "--mixers", "softmax,late")
    first = cortado(*command, "--mixers", "softmax")
    assert first.returncode == 0, first.stderr
    trained = (work / "compare" / "runs" / "softmax" / "trainer.safetensors").stat().st_mtime_ns
    both = cortado(*command, "--mixers", "softmax,latte")
    assert both.returncode == 0, both.stderr
    assert (work / "compare" / "runs" / "softmax" / "trainer.safetensors").stat().st_mtime_ns == trained
    table = json.loads((work / "compare" / "table.json").read_text())
    rows = {row["mixer"]: row for row in table["rows"]}
    assert list(rows) == ["softmax", "latte"]
    assert rows["latte"]["parameters"] == pytest.approx(rows["softmax"]["parameters"], rel=0.05)
    assert rows["latte"]["state_bytes"][0] == rows["latte"]["state_bytes"][1]
    assert rows["softmax"]["state_bytes"][0] < rows["softmax"]["state_bytes"][1]
    assert "| latte |" in re.sub(" +", " ", (work / "compare" / "table.md").read_text())
    assert pathlib.Path(work / "compare" / "runs" / "latte" / "config.json").exists()
    # Another comparison's folder stays unchanged.
    assert "another sweep" in refused(*command, "--mixers", "softmax", "--set", "training.learning_rate=0.5")


def test_a_classifier_is_described_and_nothing_takes_it_for_a_language_model(cortado, refused, work):
    classifier = work / "classifier.json"
    model = {"dim": 16, "heads": 2, "layers": 2, "causal": False, "mixer": {"mixer": "softmax"}}
    model |= {"head": {"type": "classes", "classes": 10}, "input": {"type": "numbers", "channels": 3}}
    classifier.write_text(json.dumps(model))
    text = cortado("describe", classifier).stdout
    assert "3 numbers per position, 10 classes" in text and "embedding" not in text and "pairs" not in text, text
    described = json.loads(cortado("describe", classifier, "--json").stdout)
    # 3 x 16 + 16 in, two layers of four 16 x 16 and three 16 x 48, five norms of 16, and 10 x 16 + 10 out
    assert described["classes"] == 10 and described["vocabulary"] == 0
    assert described["parameters"] == 3 * 16 + 16 + 2 * (4 * 16 * 16 + 3 * 16 * 48) + 5 * 16 + 10 * 16 + 10
    assert "a text trains a language model" in refused(
        "train", classifier, "--data", work / "text.txt", "--out", work / "classifier"
    )
    assert not (work / "classifier").exists()
    assert "is a classifier" in refused("generate", classifier, "--prompt", "a")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_goes_on_in_the_type_it_began_with(cortado, work, dtype):
    """A resumed run keeps its type, even if its config lets the machine choose the faster one."""
    config = json.loads((work / "config.json").read_text())
    config["training"].pop("dtype", None)
    (work / "open.json").write_text(json.dumps(config))
    command = ["train", work / "open.json", "--data", work / "text.txt", "--out", work / "run"]
    assert cortado(*command, "--set", f"training.dtype={dtype}", "--stop-at", 2).returncode == 0
    done = cortado(*command, "--resume")
    assert done.returncode == 0, done.stderr
    assert json.loads((work / "run" / "config.json").read_text())["training"]["dtype"] == dtype
    other = {"float32": "bfloat16", "bfloat16": "float32"}[dtype]
    assert 'another "training.dtype"' in cortado(*command, "--resume", "--set", f"training.dtype={other}").stderr


def test_a_model_with_taps_may_have_a_window_but_is_not_exported(cortado, work):
    mixer = '{"mixer": "softmax", "taps": 3, "rotary": true, "qk_norm": true, "output_gate": true}'
    done = cortado(*arguments(work, "--set", f"mixer={mixer}", "--set", "norm=rms"))
    assert done.returncode == 0, done.stderr
    words = ("generate", work / "run", "--prompt", "The", "--temperature", 0, "--n-tokens", 12, "--threads", 1)
    whole, window = cortado(*words), cortado(*words, "--memory", "window", "--window", 64)  # wider than the text
    assert whole.returncode == window.returncode == 0, window.stderr
    assert whole.stdout == window.stdout
    done = cortado("export", work / "run", "--out", work / "there")
    assert done.returncode == 2
    assert 'have no gates after the attention' in done.stderr
    done = cortado(*arguments(work, "--set", 'mixer={"mixer": "softmax", "taps": 3, "rotary": true}', out="taps"))
    assert done.returncode == 0, done.stderr
    done = cortado("export", work / "taps", "--out", work / "there")
    assert done.returncode == 2
    assert 'have no short convolutions of queries, keys and values ("taps")' in done.stderr


def test_a_model_with_layers_of_its_own_trains_and_is_not_exported(cortado, work):
    softmax = {"mixer": {"mixer": "softmax", "rotary": True}}
    layers = [{**softmax, "feed_forward": {"type": "experts", "experts": 4, "scores": "sigmoid", "choice_bias": True}}, softmax]
    config = json.loads((work / "config.json").read_text())
    config = {key: value for key, value in config.items() if key not in ("mixer", "layers")} | {"layers": layers, "norm": "rms"}
    (work / "config.json").write_text(json.dumps(config))
    done = cortado(*arguments(work))
    assert done.returncode == 0, done.stderr
    kept = json.loads((work / "run" / "config.json").read_text())["layers"]
    assert kept[0]["feed_forward"]["choice_bias"] and "feed_forward" not in kept[1]
    done = cortado("export", work / "run", "--out", work / "there")
    assert done.returncode == 2 and "have no layers with a feed-forward of their own" in done.stderr


@pytest.mark.mechanism("mamba")
def test_describe_says_what_parameters_are_for(cortado, work):
    config = work / "mamba.json"
    config.write_text(json.dumps({"vocabulary": 11, "dim": 16, "layers": 2, "mixer": {"mixer": "mamba", "state": 4}}))
    described = json.loads(cortado("describe", config, "--json").stdout)
    roles = {role.pop("role"): role for role in described["roles"]}
    assert sum(role["parameters"] for role in roles.values()) == described["parameters"]
    assert {name: role["decayed"] for name, role in roles.items()} == {"matrix": True, "embedding": True, "gain": False, "dynamics": False}
    assert roles["embedding"]["names"] == ["embedding"] and sorted(roles["dynamics"]["names"]) == ["a_log", "step_bias"]
    text = re.sub(" +", " ", cortado("describe", config).stdout)
    assert "dynamics 320 no" in text and "a_log" in text, text
