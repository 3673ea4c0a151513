"""Commands that open a model take a GGUF file or a Hugging Face folder instead of a run."""

import json
import os
import subprocess
import threading

import pytest
from tiny_gguf import write_tiny_gguf

CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Where imported models are kept."""
    monkeypatch.setenv("CORTADO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(name="gguf")
def fixture_gguf(tmp_path):
    return write_tiny_gguf(tmp_path / "tiny.Q8.gguf")


def ask(cortado, model, *words):
    done = cortado("generate", model, "--prompt", "abc", "--n-tokens", 8, "--temperature", 0, *words)
    assert done.returncode == 0, done.stderr
    return done


def test_a_gguf_file_is_imported_once(cortado, gguf, cache, tmp_path):
    assert cortado("import", gguf, "--out", tmp_path / "run").returncode == 0
    expected = ask(cortado, tmp_path / "run").stdout
    first = ask(cortado, gguf)
    assert first.stdout == expected and "importing" in first.stderr
    run = next(cache.glob("*/tiny.Q8"))
    assert f"into {run}" in first.stderr and (run / "config.json").exists()
    again = ask(cortado, gguf)
    assert again.stdout == expected and "import" not in again.stderr
    os.utime(gguf, (1, 1))  # it may be another file now
    assert "importing" in ask(cortado, gguf).stderr
    write_tiny_gguf(gguf, seed=1)
    other = ask(cortado, gguf)
    assert "importing" in other.stderr and other.stdout != expected
    assert [it.name for it in cache.glob("*/*/last.safetensors")] == ["last.safetensors"]  # the old ones are gone
    (run / "config.json").unlink()
    assert ask(cortado, gguf).stdout == other.stdout


def test_a_hugging_face_folder_is_imported_once(cortado, gguf, cache, tmp_path):
    folder = tmp_path / "models--some--Tiny-Llama" / "snapshots" / "c0ffee"
    folder.parent.mkdir(parents=True)
    assert cortado("export", gguf, "--out", folder).returncode == 0
    first = ask(cortado, folder)
    assert first.stdout == ask(cortado, gguf).stdout and "importing" in first.stderr
    assert next(cache.glob("*/Tiny-Llama/config.json"))
    assert "import" not in ask(cortado, folder).stderr
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')
    assert "importing" in ask(cortado, folder).stderr


def test_two_at_once_import_once(program, gguf):
    said = []

    def run():
        command = [str(program), "generate", str(gguf), "--prompt", "a", "--n-tokens", "1", "--threads", "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said.append((done.returncode, "importing" in done.stderr, done.stderr))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [code for code, _, _ in said] == [0, 0, 0], said
    assert sum(imported for _, imported, _ in said) == 1, said


@pytest.mark.parametrize(
    "words",
    [
        "describe MODEL", "bench model MODEL --tokens 8 --depth 0 --rounds 1", "eval MODEL --text TEXT --context 16 --limit 50",
        "eval --limit 50 --context 16 --text TEXT MODEL",
        "eval ppl MODEL --data TEXT --lengths 16 --tokens 20", "eval niah MODEL --lengths 640 --samples 1 --tasks single_1",
        "analyze attention MODEL --tokens 8", "export MODEL --out OUT", "export MODEL --to-hub-folder --out OUT",
        "linearize MODEL --method macchiato --data TEXT --context 16 --tokens 32 --out OUT", "train MODEL --data TEXT --lora 2 --steps 1 --out OUT",
    ],
)  # fmt: skip
def test_every_command_that_opens_a_model_takes_one(cortado, gguf, text, tmp_path, mechanisms, words):
    if "macchiato" in words and "macchiato" not in mechanisms:
        pytest.skip("macchiato was deleted")
    names = {"MODEL": gguf, "TEXT": text, "OUT": tmp_path / "out"}
    done = cortado(*[names.get(word, word) for word in words.split()], "--threads", 1)
    assert done.returncode == 0, done.stderr
    assert "importing" in done.stderr


def test_what_is_no_model_is_told_in_a_line(refused, gguf, tmp_path, root):
    assert "is no model" in refused("generate", root / "README.md", "--prompt", "x")
    (tmp_path / "page.gguf").write_text("<!DOCTYPE html>")
    assert "is no model" in refused("describe", tmp_path / "page.gguf")
    (tmp_path / "cut.gguf").write_bytes(gguf.read_bytes()[:300])
    assert "cut.gguf" in refused("serve", tmp_path / "cut.gguf").replace("\n", " ")
    assert "there is no run" in refused("generate", tmp_path / "nothing.gguf", "--prompt", "x")


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_an_import_for_inference_keeps_only_narrow_weights(cortado, refused, gguf, cache, text, tmp_path, weights):
    whole, narrow = tmp_path / "whole", tmp_path / "narrow"
    assert cortado("import", gguf, "--out", whole).returncode == 0
    done = cortado("import", gguf, "--out", narrow, "--weights", weights)
    assert done.returncode == 0, done.stderr
    assert [file.name for file in narrow.glob("*.safetensors")] == [f"last.{weights}.safetensors"]
    expected = ask(cortado, whole, "--weights", weights).stdout
    assert ask(cortado, narrow, "--weights", weights).stdout == expected
    assert ask(cortado, narrow).stdout == expected  # it has no others
    other = "int4" if weights == "int8" else "int8"
    assert f"as {weights} only" in refused("generate", narrow, "--prompt", "x", "--weights", other)
    assert f"as {weights} only" in refused("train", narrow, "--data", text, "--lora", 2, "--steps", 1, "--out", tmp_path / "tuned")
    assert f"as {weights} only" in refused("export", narrow, "--out", tmp_path / "exported")
    assert ask(cortado, gguf, "--weights", weights).stdout == expected
    run = next(cache.glob(f"*-{weights}/tiny.Q8"))
    assert not (run / "last.safetensors").exists()
    assert "importing" not in ask(cortado, gguf, "--weights", weights).stderr


def test_a_cache_that_cannot_be_written_is_told(refused, gguf, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CORTADO_CACHE", str(tmp_path / "file"))
    assert str(tmp_path / "file") in refused("generate", gguf, "--prompt", "x")


def sampling_of(folder):
    return json.loads((folder / "generation_config.json").read_text())


def test_how_a_model_is_sampled_goes_with_it(cortado, text, tmp_path, mechanisms):
    gguf = write_tiny_gguf(tmp_path / "own.gguf", chat_template=CHATML, sampling={"temp": 0.3, "top_k": 7, "penalty_repeat": 1.25})
    own = {"do_sample": True, "temperature": 0.3, "top_k": 7, "repetition_penalty": 1.25}
    run = tmp_path / "run"
    assert cortado("import", gguf, "--out", run).returncode == 0
    assert sampling_of(run) == own
    assert cortado("export", run, "--out", tmp_path / "hf").returncode == 0
    assert sampling_of(tmp_path / "hf").items() >= own.items() and "eos_token_id" in sampling_of(tmp_path / "hf")
    assert cortado("import", tmp_path / "hf", "--out", tmp_path / "again").returncode == 0
    assert sampling_of(tmp_path / "again") == own
    assert cortado("export", run, "--to-hub-folder", "--out", tmp_path / "hub").returncode == 0
    assert sampling_of(tmp_path / "hub").items() >= own.items()
    done = cortado("train", run, "--data", text, "--lora", 2, "--steps", 1, "--out", tmp_path / "tuned", "--threads", 1)
    assert done.returncode == 0 and sampling_of(tmp_path / "tuned") == own, done.stderr
    if "macchiato" in mechanisms:
        options = ["--method", "macchiato", "--data", text, "--context", 16, "--tokens", 32, "--threads", 1]
        assert cortado("linearize", run, *options, "--out", tmp_path / "linear").returncode == 0
        assert sampling_of(tmp_path / "linear") == own


def test_generate_samples_as_the_model_has_it(cortado, tmp_path):
    def written(sampling, *words, template=None):
        gguf = write_tiny_gguf(tmp_path / "it.gguf", chat_template=template, sampling=sampling)
        done = cortado("generate", gguf, "--prompt", "abc", "--n-tokens", 12, "--seed", 3, "--json", *words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["token_ids"]

    plain = written(None)
    assert plain == written(None, "--temperature", 1)
    greedy = written({"temp": 0.0})
    assert greedy == written(None, "--temperature", 0) != plain
    assert written({"temp": 0.0}, "--temperature", 1) == plain
    llama = ["--temperature", 0.8, "--top-k", 40, "--top-p", 0.95, "--min-p", 0.05]
    assert written(None, template=CHATML) == written(None, *llama) != plain
