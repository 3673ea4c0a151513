"""One checkpoint, several memories: --memory of generate and describe."""

import json

import pytest
import torch

pytestmark = pytest.mark.mechanism("lolcats", "lola")
GREEDY = ("--temperature", 0, "--threads", 1, "--n-tokens", 60, "--prompt", "ROMEO: what light")


@pytest.fixture(scope="module", name="linearized")
def fixture_linearized(train_run, tmp_path_factory, text):
    """A LoLCATs model, trained for 20 steps."""
    folder = tmp_path_factory.mktemp("linearized")
    mixer = {"mixer": "lolcats", "window": 8, "features": 4, "layout": "sliding", "mixture": "gated"}
    return train_run(folder, text, mixer=mixer, positions="rotary")


def test_a_cache_that_holds_everything_is_softmax(cortado, linearized):
    def write(*memory):
        done = cortado("generate", linearized, *GREEDY, *memory)
        assert done.returncode == 0, done.stderr
        return done.stdout

    softmax = write("--memory", "softmax")
    assert write("--memory", "lola", "--cache", 200, "--chunk", 4) == softmax
    assert write("--memory", "lola", "--cache", 200, "--window", 7) == softmax
    assert write("--memory", "window", "--window", 200) == softmax
    assert write("--memory", "lolcats") == write()


def test_describe_counts_pairs(cortado, linearized):
    done = cortado("describe", linearized, "--memory", "lola", "--cache", 16, "--chunk", 8, "--json")
    depth = json.loads(done.stdout)["depths"][0]
    assert depth["pairs"] == {"softmax": 32, "state": 4}
    assert depth["compression"] == pytest.approx(1024 / 36)
    windowed = cortado("describe", linearized, "--memory", "lola", "--cache", 16, "--chunk", 8, "--window", 100, "--json")
    assert json.loads(windowed.stdout)["depths"][0]["pairs"]["softmax"] == 116
    assert "softmax pairs per head" in cortado("describe", linearized).stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--cache", 4), "[memory] --cache needs --memory"),
        (("--memory", "softmax", "--cache", 4), "[memory] softmax has no cache"),
        (("--memory", "lolcats", "--chunk", 4), "[memory] lolcats has no chunk"),
        (("--memory", "lola", "--chunk", 0), "--chunk: Value 0 not in range 1"),
    ],
)
def test_what_makes_no_sense_is_refused(cortado, linearized, arguments, message):
    done = cortado("generate", linearized, *GREEDY, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_softmax_model_is_no_lola(cortado, trained_softmax):
    done = cortado("generate", trained_softmax, *GREEDY, "--memory", "lola")
    assert done.returncode == 2
    assert "`cortado linearize` makes a model that can" in done.stderr


def test_bench_model_measures_a_memory(cortado, linearized):
    common = ("--tokens", 32, "--batch", 1, "--depth", 64, "--rounds", 1, "--vocabulary", 50, "--quiet", "--json")
    states = []
    for memory in (("softmax",), ("lola", "--cache", 4, "--chunk", 4)):
        done = cortado("bench", "model", linearized, "--memory", *memory, *common)
        assert done.returncode == 0, done.stderr
        states.append(json.loads(done.stdout)["decode"][0]["state_bytes"])
    assert states[0] != states[1]


def test_python_opens_a_run_with_a_memory(build, linearized):
    torch.classes.load_library(str(build / "lib" / "libcortado.so"))
    tokens = torch.randint(30, (1, 40))

    def logits(memory):
        return torch.classes.cortado.LanguageModel(str(linearized), "float32", json.dumps(memory) if memory else "").forward(tokens)

    everything, little = {"kind": "lola", "cache": 200, "chunk": 4}, {"kind": "lola", "cache": 4, "chunk": 4}
    softmax = logits({"kind": "softmax"})
    assert torch.allclose(logits(everything), softmax, atol=1e-4)
    assert not torch.allclose(logits(little), softmax, atol=1e-3)
    assert not torch.allclose(logits(None), softmax, atol=1e-3)
    with pytest.raises(RuntimeError, match=r'unknown key "chunks" .*did you mean "chunk"'):
        logits({"kind": "lola", "chunks": 4})
