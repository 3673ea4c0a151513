"""Models of the program in transformers: Auto classes, generate, padding, Trainer, peft, pipelines, lm_eval."""

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
import transformers
from quick import quick

import cortado.models
import cortado.nn
import cortado.transformers
from cortado.models import load as cortado_load
from cortado.transformers import CortadoCache, CortadoConfig, CortadoForCausalLM, CortadoTokenizer

PROMPTS = ["The king shall live", "And", "What is the news"]
MIXERS = [{"mixer": "macchiato", "latents": 8, "window": 9}, {"mixer": "softmax"}, {"mixer": "gla"}, {"mixer": "lolcats", "window": 8}]


@pytest.fixture(scope="module", params=MIXERS, ids=lambda it: it["mixer"], name="opened")
def fixture_opened(request, trained):
    """(model, tokenizer), as AutoModelForCausalLM opens a run."""
    return open_run(trained(mixer=request.param))


def open_run(run, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(run, **options), transformers.AutoTokenizer.from_pretrained(run)


def logits_of(model, tokens, **options):
    with torch.no_grad():
        return model(input_ids=tokens, **options).logits


def written(model, tokenizer, text, **options):
    """Returns the generated tokens."""
    encoded = tokenizer(text, return_tensors="pt")
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, **options}
    return model.generate(**encoded, **options)[:, encoded["input_ids"].shape[1] :]


def test_a_run_is_opened(run):
    model, tokenizer = open_run(run)
    assert isinstance(model, CortadoForCausalLM) and isinstance(tokenizer, CortadoTokenizer)
    own = cortado.models.load(run)
    tokens = tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    assert tokens.tolist() == [own.tokenizer.encode(PROMPTS[0])] and tokenizer.decode(tokens[0]) == PROMPTS[0]
    assert torch.equal(logits_of(model, tokens), own(tokens)[0])
    assert (model.config.vocab_size, model.config.hidden_size, model.config.num_hidden_layers) == (own.config["vocabulary"], 32, 2)
    assert not model.training


def test_greedy_answers_are_the_programs(opened):
    model, tokenizer = opened
    for text in PROMPTS:
        alone = model.model.generate(tokenizer(text, return_tensors="pt")["input_ids"], 12)
        assert torch.equal(written(model, tokenizer, text), alone)
        assert torch.equal(written(model, tokenizer, text, use_cache=False), alone)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(opened, side):
    model, tokenizer = opened
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.padding_side = side
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    mask = batch["attention_mask"].bool()
    together = logits_of(model, **{"tokens": batch["input_ids"], "attention_mask": batch["attention_mask"]})
    labels = batch["input_ids"].masked_fill(~mask, -100)
    losses = []
    for row, text in enumerate(PROMPTS):
        tokens = tokenizer(text, return_tensors="pt")["input_ids"]
        torch.testing.assert_close(together[row][mask[row]], logits_of(model, tokens)[0], rtol=1e-4, atol=1e-4)
        losses.append((model(input_ids=tokens, labels=tokens).loss, tokens.shape[1] - 1))
    whole = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
    expected = sum(loss * count for loss, count in losses) / sum(count for _, count in losses)
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    answers = model.generate(**batch, max_new_tokens=12, do_sample=False, pad_token_id=0)[:, mask.shape[1] :]
    for row, text in enumerate(PROMPTS):
        assert torch.equal(answers[row], written(model, tokenizer, text)[0]), text


def test_beams_and_samples(opened):
    model, tokenizer = opened
    beams = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 16}
    assert torch.equal(written(model, tokenizer, PROMPTS[0], **beams), written(model, tokenizer, PROMPTS[0], use_cache=False, **beams))
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append(written(model, tokenizer, PROMPTS[0], do_sample=True, temperature=0.9, top_k=20, num_return_sequences=3))
    assert torch.equal(*drawn) and not torch.equal(drawn[0][0], drawn[0][1])


def test_the_cache_is_a_state_that_goes_on(opened):
    model, tokenizer = opened
    tokens = tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        first = model(input_ids=tokens[:, :7], use_cache=True)
        kept = copy.deepcopy(first.past_key_values)
        second = model(input_ids=tokens[:, 7:], past_key_values=first.past_key_values)
        again = model(input_ids=tokens[:, 7:], past_key_values=kept)
    torch.testing.assert_close(second.logits, logits_of(model, tokens)[:, 7:], rtol=1e-4, atol=1e-4)
    assert torch.equal(second.logits, again.logits) and second.past_key_values.get_seq_length() == tokens.shape[1]
    if model.config.cortado["mixer"]["mixer"] == "gla":
        before = kept.bytes()
        with torch.no_grad():
            model(input_ids=tokens.repeat(1, 9), past_key_values=kept)
        assert kept.bytes() == before > 0


def test_saved_and_opened_again_by_both(opened, cortado, tmp_path, root):
    model, tokenizer = opened
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    again, other = open_run(tmp_path / "saved")
    tokens = tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    assert torch.equal(logits_of(again, tokens), logits_of(model, tokens)) and other.get_vocab() == tokenizer.get_vocab()
    text = tmp_path / "text.txt"
    text.write_text((root / "data/tinyshakespeare.txt").read_text()[:60])
    done = cortado("eval", tmp_path / "saved", "--text", text, "--json")
    assert done.returncode == 0, done.stderr
    encoded = tokenizer(text.read_text(), return_tensors="pt")["input_ids"]
    expected = model(input_ids=encoded, labels=encoded).loss.item()
    assert json.loads(done.stdout)[0]["loss"] == pytest.approx(expected, rel=1e-3)


def test_types_and_names_of_options(run):
    model, _ = open_run(run, dtype=torch.bfloat16)
    assert next(model.parameters()).dtype == model.dtype == torch.bfloat16
    window = CortadoForCausalLM.from_pretrained(run, dtype="float32")
    assert window.dtype == torch.float32


@pytest.mark.parametrize("name", [name for name in cortado.nn.mechanisms() if cortado.nn._registry()[name]["causal"]])
def test_what_was_saved_opens_in_another_type(name, tmp_path):
    """The whole model has the type: it gives what the saved model gives in that type."""
    config = CortadoConfig(cortado={"vocabulary": 40, "dim": 24, "heads": 4, "layers": 1, "mixer": {"mixer": name}})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {weight.dtype for weight in again.state_dict().values()} == {torch.bfloat16}
    tokens = torch.randint(40, (1, 9))
    assert torch.equal(logits_of(again, tokens), logits_of(model.bfloat16(), tokens))


def test_a_saved_folder_with_another_memory_and_in_shards(trained, tmp_path, cortado):
    """transformers, cortado.load and the program read it."""
    run = trained(mixer={"mixer": "softmax"})
    model, tokenizer = open_run(run)
    memory = {"kind": "window", "window": 8}
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="8KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    tokens = tokenizer("The king shall live and be the king", return_tensors="pt")["input_ids"]
    expected = cortado_load(run, memory=memory)(tokens)[0]
    assert not torch.allclose(expected, logits_of(model, tokens))
    for folder in (tmp_path / "whole", tmp_path / "shards"):
        window = transformers.AutoModelForCausalLM.from_pretrained(folder, memory=memory)
        assert torch.equal(logits_of(window, tokens), expected)
        assert window.generation_config.max_new_tokens == 7 and window.config.cortado["mixer"]["mixer"] == "sliding_window"
        assert torch.equal(cortado_load(folder)(tokens)[0], logits_of(model, tokens))
        done = cortado("generate", folder, "--prompt", "The king", "--n-tokens", 5, "--temperature", 0, "--memory", "window",
                       "--window", 8)  # fmt: skip
        assert done.returncode == 0, done.stderr
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    (tmp_path / "shards" / index["weight_map"]["model.norm.weight"]).unlink()
    with pytest.raises(ValueError, match="lacks the shard"):
        cortado_load(tmp_path / "shards")


def test_options_of_from_pretrained(run, tmp_path):
    """Arguments that are used or change nothing are accepted, all others refused."""
    model, _ = open_run(run)
    model.save_pretrained(tmp_path / "saved")
    before = torch.get_rng_state()
    for folder in (run, tmp_path / "saved"):
        opened = CortadoForCausalLM.from_pretrained(folder, use_cache=False, low_cpu_mem_usage=True, revision="main", token=None,
                                                    attn_implementation="eager", device_map="cpu")  # fmt: skip
        assert opened.config.use_cache is False and torch.equal(torch.get_rng_state(), before)
        for options, kind, word in (
            ({"quantization_config": {"load_in_8bit": True}}, ValueError, "quantization_config"),
            ({"dtpye": torch.float32}, TypeError, "dtpye"),
            ({"hidden_size": 64}, (TypeError, ValueError), "hidden_size"),
            ({"attn_implementation": "flash_attention_2"}, (ValueError, TypeError, ImportError), "ttn_implementation|lash"),
            ({"memory": {"kind": "elephant"}}, ValueError, "elephant"),
        ):
            with pytest.raises(kind, match=word):
                CortadoForCausalLM.from_pretrained(folder, **options)
    with pytest.raises(ValueError, match="memory= is for a folder"):
        CortadoForCausalLM.from_pretrained(tmp_path, memory={"kind": "window", "window": 8})


def test_a_random_model_of_a_config():
    config = CortadoConfig(cortado={"vocabulary": 40, "dim": 24, "heads": 4, "layers": 2, "mixer": {"mixer": "gla"}})
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert logits_of(model, torch.randint(40, (2, 5))).shape == (2, 5, 40)
    assert sum(p.numel() for p in model.parameters()) == model.num_parameters() > 0


def test_a_pipeline(opened):
    model, tokenizer = opened
    pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)
    found = pipe(PROMPTS[:2], max_new_tokens=8, do_sample=False, batch_size=2)
    for text, answer in zip(PROMPTS, found, strict=False):
        assert answer[0]["generated_text"] == text + tokenizer.decode(written(model, tokenizer, text, max_new_tokens=8)[0])


def test_tokenizers(trained):
    run = trained(mixer={"mixer": "gla"}, training={"batch": 2, "context": 16, "steps": 2, "tokenizer": "sentencepiece:400"})
    _, tokenizer = open_run(run)
    text = "Speak, speak. ünïcode 日本"
    ids = tokenizer(text)["input_ids"]
    assert ids == cortado.models.Tokenizer(run / "tokenizer").encode(text)
    assert tokenizer.decode(ids) == text and len(tokenizer) == tokenizer.vocab_size
    assert tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(ids)) == ids
    batch = tokenizer(["a", "a longer one"], padding=True, return_tensors="pt")
    assert batch["attention_mask"].sum(1).tolist() == [len(tokenizer("a")["input_ids"]), len(tokenizer("a longer one")["input_ids"])]
    assert tokenizer.batch_decode(batch["input_ids"][1:]) == ["a longer one"]


@pytest.mark.mechanism("lola")
@pytest.mark.slow
def test_a_model_that_talks(smollm2, cortado, root, tmp_path):
    """The template and special tokens are the program's, also on linear-time memories."""
    model, tokenizer = open_run(smollm2)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    own = CortadoTokenizer.from_pretrained(smollm2).own
    assert text == own._own.chat(json.dumps({"messages": messages}))
    encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert encoded["input_ids"][0].tolist() == own.encode(text)
    answer = model.generate(**encoded, max_new_tokens=12, do_sample=False)[0, encoded["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer) and "<|im_end|>" not in tokenizer.decode(answer, skip_special_tokens=True)
    linear = tmp_path / "linear"
    done = cortado("linearize", smollm2, "--from", root / "data/smollm2/lolcats.safetensors", "--out", linear)
    assert done.returncode == 0, done.stderr
    lola, _ = open_run(linear, memory={"kind": "lola", "cache": 64, "chunk": 64})
    assert lola.config.cortado["mixer"]["mixer"] == "lola"
    answer = lola.generate(**encoded, max_new_tokens=12, do_sample=False)[0, encoded["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)


class Lines(torch.utils.data.Dataset):
    """Pieces of a text."""

    def __init__(self, text, tokenizer, length=32):
        tokens = torch.tensor(tokenizer(text)["input_ids"])
        self.rows = tokens[: len(tokens) // length * length].view(-1, length)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def training(tmp_path, **options):
    options = {"max_steps": 12, "learning_rate": 3e-3, "per_device_train_batch_size": 8, "report_to": [], "use_cpu": True,
               "logging_steps": 1, "save_steps": 6, "disable_tqdm": True, **options}  # fmt: skip
    return transformers.TrainingArguments(str(tmp_path / "out"), **options)


def fell(trainer):
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return sum(losses[:3]) - sum(losses[-3:]) > 0.3


@pytest.mark.parametrize("checkpointing", quick([False], False, True))
def test_trainer(run, root, tmp_path, checkpointing):
    model, tokenizer = open_run(run)
    data = Lines((root / "data/tinyshakespeare.txt").read_text()[:20000], tokenizer)
    trainer = transformers.Trainer(model=model, args=training(tmp_path, gradient_checkpointing=checkpointing), train_dataset=data)
    trainer.train()
    assert fell(trainer)
    again = CortadoForCausalLM.from_pretrained(tmp_path / "out" / "checkpoint-12")
    tokens = data[0]["input_ids"][None]
    assert torch.equal(logits_of(again, tokens), logits_of(model.eval(), tokens))
    goes_on = transformers.Trainer(model=again, args=training(tmp_path, max_steps=14), train_dataset=data)
    goes_on.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-12"))
    assert goes_on.state.global_step == 14


def test_accumulated_gradients_are_those_of_the_batch(run, root, tmp_path):
    """Pads, so that parts of a batch have different numbers of tokens."""
    text = (root / "data/tinyshakespeare.txt").read_text()
    found = []
    for accumulate in (1, 4):
        model, tokenizer = open_run(run, dtype=torch.float64)
        rows = [tokenizer(text[place : place + 8 + 3 * place]) for place in range(8)]
        collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
        options = {"max_steps": 1, "optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0.0,
                   "save_strategy": "no", "gradient_accumulation_steps": accumulate, "seed": 3,
                   "per_device_train_batch_size": 8 // accumulate}  # fmt: skip
        trainer = transformers.Trainer(model=model, args=training(tmp_path, **options), train_dataset=rows, data_collator=collate)
        trainer.train()
        found.append([parameter.detach() for parameter in model.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_gradient_checkpointing_changes_no_gradient(run):
    model, tokenizer = open_run(run)
    tokens = tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    found = []
    for _ in range(2):
        model.zero_grad()
        model.train()(input_ids=tokens, labels=tokens).loss.backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
        model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_lora_of_peft(trained, root, tmp_path):
    peft = pytest.importorskip("peft")
    run = trained(mixer={"mixer": "gla"})
    model, tokenizer = open_run(run)
    tokens = tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    before = logits_of(model, tokens)
    settings = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q", "k", "v", "o"], lora_dropout=0.0, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, settings)
    assert torch.equal(logits_of(adapted, tokens), before)  # B is zero
    data = Lines((root / "data/tinyshakespeare.txt").read_text()[:20000], tokenizer)
    trainer = transformers.Trainer(model=adapted, args=training(tmp_path, learning_rate=2e-2), train_dataset=data)
    trainer.train()
    trained_parameters = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert fell(trainer) and all("lora_" in name for name in trained_parameters) and len(trained_parameters) >= 16
    adapted.eval()
    after = logits_of(adapted, tokens)
    with adapted.disable_adapter():
        torch.testing.assert_close(logits_of(adapted, tokens), before)
    adapted.save_pretrained(tmp_path / "adapter")
    fresh = peft.PeftModel.from_pretrained(open_run(run)[0], tmp_path / "adapter")
    torch.testing.assert_close(logits_of(fresh, tokens), after, rtol=1e-5, atol=1e-5)
    merged = fresh.merge_and_unload()
    torch.testing.assert_close(logits_of(merged, tokens), after, rtol=1e-3, atol=1e-3)
    merged.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits_of(CortadoForCausalLM.from_pretrained(tmp_path / "merged"), tokens), logits_of(merged, tokens))


@pytest.mark.slow
def test_sft_trainer(run, root, tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    model, tokenizer = open_run(run)
    text = (root / "data/tinyshakespeare.txt").read_text()[:20000]
    rows = datasets.Dataset.from_dict({"text": [part for part in text.split("\n\n") if len(part) > 20]})
    arguments = trl.SFTConfig(str(tmp_path / "out"), max_steps=12, learning_rate=3e-3, per_device_train_batch_size=8, report_to=[],
                              use_cpu=True, logging_steps=1, save_strategy="no", disable_tqdm=True, max_length=64, bf16=False, eos_token="\n")  # fmt: skip
    trainer = trl.SFTTrainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    assert fell(trainer)


@pytest.mark.slow
def test_lm_eval(run, root, tmp_path):
    """`lm_eval --model hf` on a task of one's own; its score is that of the model's own logits."""
    pytest.importorskip("lm_eval")
    texts = ["The king shall live and be the king", "What news, my lord?"]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "own.yaml").write_text(f"""task: own_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path}/data.jsonl}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: byte_perplexity}}]
""")
    script = "import cortado.transformers; from lm_eval.__main__ import cli_evaluate; cli_evaluate()"
    command = [sys.executable, "-c", script, "--model", "hf", "--model_args", f"pretrained={run},dtype=float32,prefix_token_id=0",
               "--tasks", "own_text", "--include_path", str(tmp_path), "--device", "cpu", "--batch_size", "1",
               "--output_path", str(tmp_path / "found")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": f"{root / 'tests/only_named_tasks'}:{root / 'python'}", "HF_HUB_OFFLINE": "1",
                               "HF_DATASETS_CACHE": str(tmp_path / "cache")})  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(next((tmp_path / "found").rglob("*.json")).read_text())["results"]["own_text"]["byte_perplexity,none"]
    model, tokenizer = open_run(run)
    total = 0.0
    for text in texts:
        tokens = torch.tensor([[0, *tokenizer(text)["input_ids"]]])
        total += torch.nn.functional.cross_entropy(logits_of(model, tokens)[0, :-1], tokens[0, 1:], reduction="sum").item()
    expected = torch.tensor(total / sum(len(text) for text in texts)).exp().item()
    assert found == pytest.approx(expected, rel=1e-3)


def test_the_cache_answers_as_those_of_transformers(opened):
    model, tokenizer = opened
    tokens = tokenizer([PROMPTS[0]] * 2, return_tensors="pt")["input_ids"]
    cache = CortadoCache()
    assert not cache.has_previous_state() and not cache.is_initialized and cache.batch_size == -1 and cache.get_seq_length() == 0
    logits_of(model, tokens[:, :7], past_key_values=cache)
    assert cache.has_previous_state(0) and cache.is_initialized and cache.batch_size == 2
    assert cache.get_seq_length() == cache.get_query_offset() == 7 and cache.get_mask_sizes(3, 0) == (10, 0) and cache.get_max_length() == -1
    assert not cache.is_croppable and not cache.is_compileable
    cache.crop(0)
    kept = copy.deepcopy(cache)  # a prefix that several texts share
    followed = [logits_of(model, tokens[:, 7:], past_key_values=it) for it in (cache, kept)]
    assert torch.equal(*followed)
    torch.testing.assert_close(followed[0], logits_of(model, tokens)[:, 7:], rtol=1e-4, atol=1e-4)
    for call in (lambda: cache.update(None, None, 0), lambda: cache.update_recurrent_state(None, 0), lambda: cache.activate_past_recording()):
        with pytest.raises(ValueError, match="state"):
            call()
    cache.reset()
    assert not cache.has_previous_state()


def test_what_is_wrong_is_said(run, tmp_path):
    model, tokenizer = open_run(run)
    encoded = tokenizer(PROMPTS[0], return_tensors="pt")
    newer, damaged = tmp_path / "newer", tmp_path / "damaged"
    for folder in (newer, damaged):
        folder.mkdir()
        for name in ("config.json", "last.safetensors"):
            (folder / name).write_bytes((run / name).read_bytes())
    (newer / "config.json").write_text(json.dumps({**json.loads((run / "config.json").read_text()), "flux": 3}))
    (damaged / "last.safetensors").write_bytes(b"\0" * 100)
    for call, kind, word in (
        (lambda: model.generate(**encoded, assistant_model=open_run(run)[0], max_new_tokens=4), ValueError, "ssisted|stateful"),
        (lambda: model.generate(**encoded, cache_implementation="static", max_new_tokens=4), ValueError, "cache_implementation"),
        (lambda: model(**encoded, use_cache=True).past_key_values.crop(1), ValueError, "forget"),
        (lambda: model.set_input_embeddings(None), ValueError, "vocabulary"),
        (lambda: model(**encoded, output_attentions=True), ValueError, "output_attentions"),
        (lambda: CortadoForCausalLM(CortadoConfig()), ValueError, "cortado="),
        (lambda: open_run(newer), ValueError, "flux"),
        (lambda: open_run(damaged), ValueError, "last.safetensors"),
        (lambda: CortadoConfig(cortado={"dim": 3}), ValueError, "config"),
        (lambda: CortadoConfig(cortado=model.config.cortado, hidden_size=7), ValueError, "hidden_size is 32"),
        (lambda: CortadoTokenizer.from_pretrained(tmp_path), OSError, "tokenizer"),
    ):
        with pytest.raises(kind, match=word):
            call()
