"""Linear maps and embeddings in a model are called if they are hooked, replaced or adapted by peft; those that never
are refuse hooks."""

import copy

import pytest
import torch
import transformers

import cortado.nn
from cortado.models import LanguageModel
from cortado.transformers import CortadoConfig

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5], [3, 5, 8, 9, 7, 9, 3, 2, 3]])
MASK = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [1] * 9])


def config(tied=True, mixer="gla"):
    return {"vocabulary": 40, "dim": 24, "heads": 4, "layers": 2, "mixer": {"mixer": mixer}, "embedding": {"tied": tied},
            "positions": "learned", "context": 32, "feed_forward": {"type": "swiglu", "dim": 32}}  # fmt: skip


def small(tied=True, mixer="gla"):
    torch.manual_seed(0)
    made = CortadoConfig(cortado=config(tied, mixer))
    return transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float64).eval()


def logits(model, **options):
    with torch.no_grad():
        return model(input_ids=TOKENS, **options).logits


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def shake(model, seed=1, name=""):
    """Adapters begin with a product of 0."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if ("lora_" in key or "trainable_tokens" in key) and name in key:
                parameter.normal_(0, 0.3)


def all_inner(model):
    kinds = (torch.nn.Linear, torch.nn.Embedding)
    return {name: module for name, module in model.named_modules() if isinstance(module, kinds)}


@pytest.mark.parametrize("name", [name for name in cortado.nn.mechanisms() if cortado.nn._registry()[name]["causal"]])
def test_every_one_that_is_shown_is_called(name):
    """Hooks run for all maps of every mechanism, and their changes reach the output; hooks alone change nothing."""
    model = LanguageModel(config(tied=False, mixer=name), dtype=torch.float64).eval()
    expected, _ = model(TOKENS)
    seen = {}
    for place, module in all_inner(model).items():
        module.register_forward_hook(lambda _, __, y, place=place: seen.update({place: y}))
    found, _ = model(TOKENS)
    close(found, expected)
    assert set(seen) == set(all_inner(model))
    assert seen["embedding"].shape == (2, 9, 24) and seen["head"].shape == (2, 9, 40)
    shifted = next(module for place, module in all_inner(model).items() if place.startswith("layers."))
    shifted.register_forward_hook(lambda _, __, y: 3 * y)
    assert not torch.allclose(model(TOKENS)[0], expected)


def test_gradients_pass_through_what_is_called():
    model = LanguageModel(config(tied=False), dtype=torch.float64)
    hooked = copy.deepcopy(model)
    for module in all_inner(hooked).values():
        module.register_forward_hook(lambda _, __, y: None)
        module.register_full_backward_hook(lambda *_: None)
    for it in (model, hooked):
        it.loss(TOKENS[:, :-1], TOKENS[:, 1:]).backward()
    for one, other in zip(model.parameters(), hooked.parameters(), strict=True):
        close(one.grad, other.grad)


def test_the_head_is_called_once_a_step():
    model = small(tied=False)
    calls = []
    expected = model(input_ids=TOKENS, labels=TOKENS).loss
    model.model.head.register_forward_hook(lambda *_: calls.append(1))
    close(model(input_ids=TOKENS, labels=TOKENS).loss, expected)
    assert len(calls) == 1


def test_another_module_in_its_place():
    class Twice(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    def doubled(model):
        mixer = model.layers[0].mixer
        return mixer, mixer.o

    model, other = LanguageModel(config(), dtype=torch.float64), None
    other = copy.deepcopy(model)
    mixer, o = doubled(model)
    mixer.o = Twice(o.in_features, o.out_features, bias=False, dtype=torch.float64)
    mixer.o.weight = o.weight
    _, o = doubled(other)
    with torch.no_grad():
        o.weight.mul_(2)
    close(model(TOKENS)[0], other(TOKENS)[0])
    mixer.o = torch.nn.Sequential(torch.nn.Linear(24, 5, dtype=torch.float64), torch.nn.Linear(5, 24, dtype=torch.float64))
    assert model(TOKENS)[0].shape == (2, 9, 40)
    model.layers[0].mixer.forward = None
    mixer.o.forward = lambda x: x * 0
    y, _ = model(TOKENS)
    mixer.o = torch.nn.Identity()
    assert not torch.allclose(model(TOKENS)[0], y)


def test_what_is_never_called_says_so():
    model = LanguageModel(config())
    for register in ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"):
        with pytest.raises(TypeError, match="never called") as caught:
            getattr(model.layers[0].mixer, register)(print)
        assert "\n" not in str(caught.value)
    model.layers[0].mixer_norm = torch.nn.RMSNorm(24)
    with pytest.raises(TypeError, match="mixer_norm is now a RMSNorm"):
        model(TOKENS)


def test_an_error_in_a_hook_is_the_hooks():
    model = LanguageModel(config())

    def fail(*_):
        raise KeyError("mine")

    handle = model.layers[1].mixer.q.register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="mine"):
        model(TOKENS)
    handle.remove()
    assert model(TOKENS)[0].isfinite().all()


def test_noise_on_the_embedding():
    """NEFTune works: transformers' Trainer adds it as a hook of the input embedding in training."""
    model = small()
    expected = logits(model)
    embedding = model.get_input_embeddings()
    embedding.register_forward_hook(lambda module, _, y: y + torch.randn_like(y) if module.training else y)
    close(logits(model), expected)
    model.train()
    assert (logits(model) - expected).abs().max() > 0.1


ADAPTERS = {
    "all-linear": {"target_modules": "all-linear"}, "embedding": {"target_modules": ["q", "embedding"]},
    "dora": {"target_modules": ["q", "down"], "use_dora": True}, "dropout": {"target_modules": ["q"], "lora_dropout": 0.5},
    "whole norm": {"target_modules": ["q"], "modules_to_save": ["norm"]},
    "whole embedding": {"target_modules": ["q"], "modules_to_save": ["embedding"]},
    "some tokens": {"target_modules": ["q"], "trainable_token_indices": [1, 3, 5]},
}  # fmt: skip


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters(name, tied, tmp_path):
    """peft's adapters act at once, and stay the same when merged, and when saved and opened again."""
    peft = pytest.importorskip("peft")
    plain = logits(small(tied))
    model = peft.get_peft_model(small(tied), peft.LoraConfig(r=4, task_type="CAUSAL_LM", **ADAPTERS[name])).eval()
    close(logits(model), plain)
    shake(model)
    found = logits(model)
    assert (found - plain).abs().max() > 0.1
    model.train()(input_ids=TOKENS, labels=TOKENS).loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters() if p.requires_grad)
    model.eval().save_pretrained(tmp_path)
    close(logits(peft.PeftModel.from_pretrained(small(tied), tmp_path)), found)
    close(logits(model.merge_and_unload()), found)


def test_dropout_of_adapters_draws():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(small(), peft.LoraConfig(r=4, target_modules=["q"], lora_dropout=0.5)).train()
    shake(model)
    assert not torch.equal(logits(model), logits(model))
    model.eval()
    assert torch.equal(logits(model), logits(model))


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_every_row_its_own_adapter(padded):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=4, target_modules=["q", "up", "o"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(small(), settings, adapter_name="one")
    model.add_adapter("two", settings)
    for seed, name in enumerate(("one", "two")):
        model.set_adapter(name)
        shake(model, seed, f".{name}.")
    model.eval()
    options = {"attention_mask": MASK} if padded else {}
    generate = {"input_ids": TOKENS, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, **options}
    together, written = logits(model, adapter_names=["one", "two"], **options), model.generate(**generate, adapter_names=["one", "two"])
    for row, name in enumerate(("one", "two")):
        model.set_adapter(name)
        close(together[row], logits(model, **options)[row])
        assert torch.equal(written[row], model.generate(**generate)[row])


def test_what_a_tied_embedding_cannot_have():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(small(), peft.LoraConfig(r=4, target_modules=["embedding"], use_dora=True)).eval()
    with pytest.raises(ValueError, match="the head as well"):
        logits(model)
    model = LanguageModel(config())
    model.embedding = torch.nn.Sequential(model.embedding)
    with pytest.raises(TypeError, match="Sequential in its place has no weight"):
        model(TOKENS)


@pytest.mark.parametrize("name", ["LoHaConfig", "IA3Config", "VeraConfig"])
def test_other_kinds_of_adapters(name):
    peft = pytest.importorskip("peft")
    more = {"feedforward_modules": []} if name == "IA3Config" else {}
    model = peft.get_peft_model(small(), getattr(peft, name)(target_modules=["q", "o"], **more)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    found = logits(model)
    torch._dynamo.reset()
    close(logits(torch.compile(model, backend="aot_eager"), use_cache=False), found)
    merged = logits(model.merge_and_unload())
    torch.testing.assert_close(merged, found, rtol=1e-4, atol=1e-4)  # of VeRA in float32
    assert (found - logits(small())).abs().max() > 1e-2


def test_what_adapts_weights_that_are_never_called():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(small(), peft.LNTuningConfig(task_type="CAUSAL_LM", target_modules=["norm"]))
    with pytest.raises(TypeError, match="norm is now a LNTuningLayer"):
        logits(model)


def test_compiled_adapters():
    """Sums of weights stay in one graph; modules that must be called break it."""
    peft = pytest.importorskip("peft")
    torch._dynamo.reset()
    model = peft.get_peft_model(small(), peft.LoraConfig(r=4, target_modules=["q", "embedding"])).eval()
    shake(model)
    backbone = model.base_model.model.model
    with torch.no_grad():
        expected = backbone(TOKENS).last_hidden_state
        close(torch.compile(backbone, backend="aot_eager", fullgraph=True)(TOKENS).last_hidden_state, expected)
        backbone.layers[0].mixer.k.register_forward_hook(lambda _, __, y: 2 * y)
        expected = backbone(TOKENS).last_hidden_state
        torch._dynamo.reset()
        close(torch.compile(backbone, backend="aot_eager")(TOKENS).last_hidden_state, expected)


def test_compiled_with_padding():
    """Reading the mask breaks the graph; without a mask the graph is whole."""
    torch._dynamo.reset()
    model = small()
    compiled = torch.compile(model, backend="aot_eager")
    close(logits(compiled, attention_mask=MASK, use_cache=False), logits(model, attention_mask=MASK, use_cache=False))
    torch._dynamo.reset()
    close(logits(torch.compile(model, backend="aot_eager", fullgraph=True), use_cache=False), logits(model))
