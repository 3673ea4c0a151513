"""cortado linearize: a softmax model to linear time, stopped, resumed, refused."""

import json

import pytest

pytestmark = pytest.mark.mechanism("lolcats")  # the default target of a conversion
SMALL = {"tokens": 640, "window": 4, "context": 32, "accumulate": 1, "batch": 2, "evaluate-every": 4, "evaluation-chunks": 2}


@pytest.fixture(scope="module", name="softmax")
def fixture_softmax(train_run, tmp_path_factory, text):
    """A rotary softmax model after 20 steps."""
    return train_run(tmp_path_factory.mktemp("softmax"), text, mixer={"mixer": "softmax"}, positions="rotary")


@pytest.fixture(name="linearize")
def fixture_linearize(cortado, text, softmax):
    """linearize(out, *flags, tokens=640, ...) -> CompletedProcess."""

    def run(out, *flags, **changes):
        options = {**SMALL, **{name.replace("_", "-"): value for name, value in changes.items()}}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return cortado("linearize", softmax, "--data", text, "--threads", 1, "--out", out, *flags, *words)

    return run


@pytest.mark.mechanism("lola")
def test_a_conversion_leaves_a_run_and_a_report(cortado, linearize, tmp_path):
    out = tmp_path / "linear"
    done = linearize(out, features=4)
    assert done.returncode == 0, done.stderr
    assert "transfer" in done.stdout and str(out) in done.stdout
    report = json.loads((out / "report.json").read_text())
    assert {"report.svg", "config.json", "tokenizer"} <= {path.name for path in out.iterdir()}
    stage = report["stages"][0]
    assert stage["stage"] == "transfer" and stage["tokens"] == 640 and [part["part"] for part in stage["losses"]] == ["layer 0", "layer 1"]
    assert stage["loss_after"] < stage["loss_before"]
    assert cortado("generate", out, "--prompt", "ROMEO", "--n-tokens", 5, "--memory", "lola", "--cache", 8, "--chunk", 4).returncode == 0


def test_resumed_is_uninterrupted(cortado, linearize, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert linearize(whole).returncode == 0
    stopped = linearize(parts, stop_at=5)
    assert stopped.returncode == 0, stopped.stderr
    assert "--resume" in stopped.stdout
    assert cortado("linearize", "--resume", "--out", parts, "--threads", 1).returncode == 0
    assert (whole / "best.safetensors").read_bytes() == (parts / "best.safetensors").read_bytes()


@pytest.mark.mechanism("macchiato")
def test_resumed_in_its_last_stage_reports_what_an_earlier_one_found(cortado, linearize, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    stages = {"method": "macchiato", "latents": 8, "tokens": 128, "lora_tokens": 128, "sink_tokens": 64}
    assert linearize(whole, **stages).returncode == 0
    assert linearize(parts, **stages, stop_at=3).returncode == 0  # of two steps per stage
    assert cortado("linearize", "--resume", "--out", parts, "--threads", 1).returncode == 0
    sinks = [json.loads((out / "report.json").read_text())["sinks"] for out in (whole, parts)]
    assert sinks[0] == sinks[1]


@pytest.mark.parametrize(
    "flags, changes, message",
    [
        ((), {"tokens": 0}, "nothing to train"),
        pytest.param((), {"latents": 8}, "[--latents] does not go with --method lolcats", marks=pytest.mark.mechanism("macchiato")),
        ((), {"cache_tokens": 9}, "[--cache-tokens] needs --cache"),
        ((), {"sink_tokens": 9}, "[--sink-tokens] needs latents"),
        ((), {"window": 64}, "sequences of 32 tokens lie in the windows of all layers"),
        ((), {"keep": 9}, "there is no layer 9"),
        (("--resume",), {}, "keeps all settings: leave"),
        ((), {"lora_tokens": 64, "lora_targets": "q_proj"}, 'no linear map "q_proj"; it has '),
        ((), {"lora_rank": 2}, "[--lora-rank] needs --lora-tokens"),
        ((), {"bptt": 8}, "[--bptt] needs --cross-entropy-tokens or --lora-tokens"),
        ((), {"tokens": 0, "lora_tokens": 64, "learning_rate": 1}, "[--learning-rate] needs --tokens"),
        ((), {"stop_at": 0}, "--stop-at"),
    ],
)
def test_what_makes_no_sense_is_refused(linearize, tmp_path, flags, changes, message):
    done = linearize(tmp_path / "out", *flags, **changes)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.mechanism("macchiato")
def test_maps_get_a_cache(cortado, text, softmax, tmp_path):
    """--from takes a file that was learned without a cache, and a flag changes the cache's size."""
    small = ("--data", text, "--context", 32, "--batch", 1, "--accumulate", 1, "--threads", 1)
    method = ("--method", "macchiato", "--window", 4, "--latents", 8, "--tokens", 64, "--evaluation-chunks", 1)
    assert cortado("linearize", softmax, *small, *method, "--out", tmp_path / "plain").returncode == 0
    learned, cached = tmp_path / "plain/learned.safetensors", tmp_path / "cached"
    settled = cortado("linearize", softmax, *small, "--from", learned, "--sink-tokens", 128, "--out", tmp_path / "settled")
    assert settled.returncode == 0 and "hold only the first token" in settled.stdout, settled.stderr
    assert "sinks" in json.loads((tmp_path / "settled/report.json").read_text())
    cache = ("--cache", 4, "--chunk", 4, "--distance", 12, "--fading", 0.5, "--cache-tokens", 256)
    done = cortado("linearize", softmax, *small, "--from", learned, *cache, "--out", cached)
    assert done.returncode == 0, done.stderr
    assert "key heads explain" in done.stdout and "stage" not in done.stdout
    config = json.loads((cached / "config.json").read_text())
    assert json.loads((cached / "report.json").read_text())["cache"]["key_heads"] > 0
    again = cortado("linearize", softmax, "--from", cached / "learned.safetensors", "--out", tmp_path / "again")
    assert again.returncode == 0, again.stderr
    assert json.loads((tmp_path / "again/config.json").read_text()) == config
    larger = cortado("linearize", softmax, "--from", cached / "learned.safetensors", "--cache", 6, "--out", tmp_path / "larger")
    assert larger.returncode == 0, larger.stderr
    assert (tmp_path / "larger/config.json").read_text() == (cached / "config.json").read_text().replace('"cache": 4', '"cache": 6')
    anew = cortado("linearize", softmax, *small, "--from", cached / "learned.safetensors", "--cache-tokens", 512, "--seed", 5, "--out", tmp_path / "anew")
    assert anew.returncode == 0 and "key heads explain" in anew.stdout, anew.stderr
    assert (tmp_path / "anew/learned.safetensors").read_bytes() != (cached / "learned.safetensors").read_bytes()
    for more in ((), ("--memory", "macchiato", "--cache", 2), ("--memory", "macchiato", "--cache", 0)):
        assert cortado("generate", cached, "--prompt", "ROMEO: and so on and on", "--n-tokens", 5, *more).returncode == 0
    sizes = []
    for kind in ((), ("--kv-type", "float16")):
        done = cortado("generate", cached, "--prompt", "ROMEO: and so on and on", "--n-tokens", 5, "--json", *kind)
        assert done.returncode == 0, done.stderr
        sizes.append(json.loads(done.stdout)["state_bytes"])
    assert sizes[1] < sizes[0]
    for flags, message in (
        (("--from", learned, "--latents", 4, "--tokens", 64), "leave --latents out"),
        (("--from", learned, "--distance", 4, "--tokens", 64), "[--distance] needs --cache"),
        (("--from", learned, "--fading", 0.5, "--tokens", 64), "[--fading] needs --cache"),
        ((*method, "--chunk", 4), "[--chunk] needs --cache"),
    ):
        refused = cortado("linearize", softmax, *small, *flags, "--out", tmp_path / "no")
        assert refused.returncode != 0 and message in refused.stderr, refused.stderr


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("method", ["lolcats", pytest.param("macchiato", marks=pytest.mark.mechanism("macchiato"))])
def test_every_stage_in_every_type(linearize, tmp_path, method, dtype):
    out = tmp_path / method
    stages = {"tokens": 256, "lora_tokens": 256, "lora_rank": 2, "bptt": 20} | ({"cross_entropy_tokens": 256} if method == "macchiato" else {})
    done = linearize(out, method=method, window=5, dtype=dtype, **stages)
    assert done.returncode == 0, done.stderr
    reports = json.loads((out / "report.json").read_text())["stages"]
    assert [stage["stage"] for stage in reports] == ["transfer", *["cross-entropy"] * (method == "macchiato"), "lora"]
    assert all(0 < stage["loss_after"] <= stage["loss_before"] for stage in reports), reports
    assert (out / "lora.safetensors").exists()


def test_what_was_learned_converts_the_model_again(cortado, linearize, softmax, text, tmp_path):
    def linearize_from(learned, out, *flags):
        return cortado("linearize", softmax, "--from", learned, "--data", text, "--context", 32, "--batch", 1, "--accumulate", 1, "--out", out, *flags)

    out, again = tmp_path / "linear", tmp_path / "again"
    assert linearize(out).returncode == 0
    learned = out / "learned.safetensors"
    assert learned.stat().st_size < (out / "best.safetensors").stat().st_size / 4
    done = cortado("linearize", softmax, "--from", learned, "--out", again)
    assert done.returncode == 0, done.stderr
    answers = [cortado("generate", run, "--prompt", "ROMEO", "--n-tokens", 20, "--temperature", 0).stdout for run in (out, again)]
    assert answers[0] == answers[1]
    tuned = [linearize_from(learned, tmp_path / "tuned", "--lora-tokens", 128, "--lora-rank", 2, *flags) for flags in ([], ["--overwrite"])]
    assert all(done.returncode == 0 and "lora" in done.stdout and "transfer" not in done.stdout for done in tuned)
    loss = [line.split()[-3:] for line in "".join(done.stdout for done in tuned).splitlines() if line.startswith("lora ")]
    assert len(loss) == 2 and loss[0] == loss[1], "the second time begins with the file, too"
    refused = linearize_from(learned, tmp_path / "no", "--cross-entropy-tokens", 8)
    assert refused.returncode == 2 and "[--cross-entropy-tokens] does not go with --method lolcats" in refused.stderr
    refused = linearize_from(learned, tmp_path / "no")
    assert refused.returncode == 2 and "trains nothing: leave --data out" in refused.stderr
    refused = linearize_from(learned, tmp_path / "no", "--lora-tokens", 128, "--window", 8)
    assert refused.returncode == 2 and "leave --window out" in refused.stderr
    learned.write_bytes(learned.read_bytes()[:-9])
    refused = cortado("linearize", softmax, "--from", learned, "--out", tmp_path / "no")
    assert refused.returncode == 2 and len(refused.stderr.strip().splitlines()) == 1 and not (tmp_path / "no").exists()


def test_instructions_teach_a_conversion(cortado, train_run, text, tmp_path):
    training = {"tokenizer": "byte", "steps": 2, "batch": 2, "context": 32}
    softmax = train_run(tmp_path / "softmax", text, mixer={"mixer": "softmax"}, positions="rotary", training=training)
    instructions = tmp_path / "alpaca.json"
    words = ("king", "queen", "sword", "crown")
    examples = [{"instruction": "Who comes?", "input": f"the {words[i % 4]}" if i % 2 else "", "output": f"A {words[i % 4]}."} for i in range(40)]
    instructions.write_text(json.dumps(examples))

    def run(out, *flags):
        sizes = ["--context", 32, "--window", 4, "--accumulate", 1, "--evaluate-every", 4, "--tokens", 320, "--lora-tokens", 320]
        return cortado("linearize", softmax, "--instructions", instructions, *sizes, "--out", tmp_path / out, *flags)

    done = run("out", "--evaluation-examples", 8)
    assert done.returncode == 0, done.stderr
    plan = json.loads((tmp_path / "out/linearize.json").read_text())
    assert plan["instructions"] == str(instructions) and plan["data"] == []
    stages = json.loads((tmp_path / "out/report.json").read_text())["stages"]
    assert [stage["stage"] for stage in stages] == ["transfer", "lora"]
    for flags, message in [
        (("--data", instructions, "--evaluation-examples", 8), "[--data] does not go with --instructions"),
        (("--evaluation-chunks", 8), "[--evaluation-chunks] does not go with --instructions"),
        ((), "40 examples of "),  # of which 200 are to evaluate on
    ]:
        refused = run("no", *flags)
        assert refused.returncode == 2 and message in refused.stderr and len(refused.stderr.strip().splitlines()) == 1
    instructions.write_text(json.dumps(examples[:3])[:-5])
    refused = run("no")
    assert refused.returncode == 2 and str(instructions) in refused.stderr and not (tmp_path / "no").exists()
    refused = cortado("linearize", softmax, "--evaluation-examples", 3, "--out", tmp_path / "no")
    assert refused.returncode == 2 and "[--evaluation-examples] needs --instructions" in refused.stderr


def test_adapters_alone_leave_a_run(cortado, linearize, tmp_path):
    out = tmp_path / "adapters"
    done = linearize(out, tokens=0, lora_tokens=256, lora_rank=2)
    assert done.returncode == 0, done.stderr
    assert cortado("generate", out, "--prompt", "ROMEO", "--n-tokens", 5).returncode == 0


def test_the_model_is_not_converted_in_place(cortado, linearize, softmax, text):
    before = sorted((path.name, path.stat().st_mtime_ns) for path in softmax.iterdir())
    for done in (linearize(softmax, "--overwrite"), linearize(softmax / ".", "--overwrite")):
        assert done.returncode == 2 and "is the model that is to be converted" in done.stderr
    assert sorted((path.name, path.stat().st_mtime_ns) for path in softmax.iterdir()) == before
