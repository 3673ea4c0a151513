"""Packed documents through transformers: each is read as if it were alone, however the batch says where they begin."""

import pytest
import torch
import transformers

from cortado.transformers import CortadoConfig

MIXERS = [{"mixer": "macchiato", "latents": 8, "window": 9}, {"mixer": "softmax"}, {"mixer": "mamba2"}, {"mixer": "gla"}]
LENGTHS = (5, 1, 9, 3)


@pytest.fixture(scope="module", params=MIXERS, ids=lambda it: it["mixer"], name="model")
def fixture_model(request):
    return small(request.param)


def small(mixer, **more):
    torch.manual_seed(3)
    config = {"vocabulary": 40, "dim": 24, "heads": 4, "layers": 2, "mixer": mixer, "positions": "learned", "context": 32, **more}
    return transformers.AutoModelForCausalLM.from_config(CortadoConfig(cortado=config), dtype=torch.float64).eval()


def documents():
    torch.manual_seed(4)
    return [torch.randint(40, (length,)).tolist() for length in LENGTHS]


def alone(model, document):
    """Returns the sum of a document's losses, and its logits."""
    tokens = torch.tensor([document])
    with torch.no_grad():
        logits = model(input_ids=tokens).logits[0]
    return torch.nn.functional.cross_entropy(logits[:-1], tokens[0, 1:], reduction="sum"), logits


def flattened(**options):
    collator = transformers.DataCollatorWithFlattening(**options)
    return collator([{"input_ids": document} for document in documents()], return_tensors="pt")


WAYS = {
    "position_ids": {}, "cu_seq_lens": {"return_position_ids": False, "return_flash_attn_kwargs": True},
    "seq_idx": {"return_position_ids": False, "return_seq_idx": True},
    "all": {"return_flash_attn_kwargs": True, "return_seq_idx": True},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_documents_stay_apart(model, way):
    batch = flattened(**WAYS[way])
    losses, logits = zip(*(alone(model, document) for document in documents()), strict=True)
    found = model(**batch)
    torch.testing.assert_close(found.logits[0], torch.cat(logits), rtol=1e-9, atol=1e-9)
    expected = sum(losses) / sum(length - 1 for length in LENGTHS)
    torch.testing.assert_close(found.loss, expected, rtol=1e-9, atol=1e-9)
    # Also if the labels do not mark a document's end.
    labels = batch["input_ids"].clone()
    torch.testing.assert_close(model(**{**batch, "labels": labels}).loss, expected, rtol=1e-9, atol=1e-9)


def test_gradients_are_those_of_the_documents(model):
    model.zero_grad()
    model(**flattened()).loss.backward()
    packed = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    count = sum(length - 1 for length in LENGTHS)
    for document in documents():
        if len(document) > 1:
            tokens = torch.tensor([document])
            (model(input_ids=tokens, labels=tokens).loss * (len(document) - 1) / count).backward()
    for one, other in zip(packed, (parameter.grad for parameter in model.parameters()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_rows_with_several_documents_and_padding(model):
    """TRL packs like this without flattening: rows of documents, then padding."""
    a, b, c, d = documents()
    rows = [a + b, c + d]
    tokens, mask, positions = (torch.zeros(2, 12, dtype=torch.int64) for _ in range(3))
    for row, inside in enumerate(rows):
        tokens[row, : len(inside)] = torch.tensor(inside)
        mask[row, : len(inside)] = 1
    positions[0, :6] = torch.tensor([*range(5), 0])
    positions[1] = torch.tensor([*range(9), *range(3)])
    labels = tokens.clone()
    found = model(input_ids=tokens, attention_mask=mask, position_ids=positions, labels=labels)
    losses, logits = zip(*(alone(model, document) for document in (a, b, c, d)), strict=True)
    torch.testing.assert_close(found.logits[0, :6], torch.cat(logits[:2]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.logits[1], torch.cat(logits[2:]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.loss, sum(losses) / sum(length - 1 for length in LENGTHS), rtol=1e-9, atol=1e-9)
    # A continuation continues a row's last document.
    with torch.no_grad():
        follow = torch.tensor([[7], [8]])
        cached = model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=True).past_key_values
        last = model(input_ids=follow, past_key_values=cached).logits[:, 0]
        for row, document in enumerate((b, d)):
            expected = model(input_ids=torch.tensor([[*document, follow[row].item()]])).logits[0, -1]
            torch.testing.assert_close(last[row], expected, rtol=1e-9, atol=1e-9)


def test_the_backbone_reads_them_too(model):
    """TRL's losses call it without the head."""
    batch = flattened()
    hidden = model.base_model(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).last_hidden_state
    weight = model.get_output_embeddings().weight  # a tied model's is the embedding's
    torch.testing.assert_close(hidden @ weight.T, model(**batch).logits, rtol=1e-9, atol=1e-9)


def test_trl_packs(trained, root, tmp_path):
    """SFTTrainer's first loss with packing is that of the separate documents."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    run = trained(mixer={"mixer": "gla"})
    text = (root / "data/tinyshakespeare.txt").read_text()[:3000]
    rows = datasets.Dataset.from_dict({"text": [part for part in text.split("\n\n") if len(part) > 20][:8]})
    model = transformers.AutoModelForCausalLM.from_pretrained(run)
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    arguments = trl.SFTConfig(str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=64, report_to=[], use_cpu=True,
                              logging_steps=1, save_strategy="no", disable_tqdm=True, max_length=512, packing=True, bf16=False,
                              eos_token="\n")  # fmt: skip
    trainer = trl.SFTTrainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
    seen = []
    inner = trainer.data_collator

    def collate(features):
        seen.append(inner(features))
        return seen[-1]

    trainer.data_collator = collate
    trainer.train()
    apart = transformers.AutoModelForCausalLM.from_pretrained(run)
    bounds = seen[0]["cu_seq_lens_q"].tolist()
    assert len(bounds) > 3
    total = count = 0
    for low, high in zip(bounds, bounds[1:], strict=False):
        document = seen[0]["input_ids"][0, low:high].tolist()
        total, count = total + alone(apart, document)[0].item(), count + len(document) - 1
    assert trainer.state.log_history[0]["loss"] == pytest.approx(total / count, abs=2e-4)


TOKENS = {"input_ids": torch.ones(1, 6, dtype=torch.int64)}
REFUSED = [
    ({"attention_maks": torch.ones(1, 6)}, TypeError, "attention_maks"),
    ({"attention_mask": torch.ones(1, 1, 6, 6)}, ValueError, "other masks"),
    ({"attention_mask": torch.ones(1, 5)}, ValueError, r"shape \[1, 6\]"),
    ({"attention_mask": torch.tensor([[1, 1, 2, 2, 2, 2]])}, ValueError, "no other numbers"),
    ({"position_ids": torch.tensor([[1, 2, 3, 4, 5, 6]])}, ValueError, "position_ids: 1"),
    ({"position_ids": torch.tensor([[0, 1, 2, 7, 8, 9]])}, ValueError, "position_ids: 7"),
    ({"position_ids": torch.zeros(3, 1, 6)}, ValueError, "position_ids of shape"),
    ({"seq_idx": torch.zeros(1, 5)}, ValueError, "seq_idx of shape"),
    ({"cu_seq_lens_q": torch.tensor([0, 3])}, ValueError, "go from 0 to 6"),
    ({"cu_seq_lens_q": torch.tensor([0, 4, 3, 6])}, ValueError, "go from 0 to 6"),
    ({"cu_seq_lens_q": torch.tensor([0, 3, 6]), "seq_idx": torch.tensor([[0, 0, 1, 1, 1, 1]])}, ValueError, "different tokens"),
    ({"inputs_embeds": torch.ones(1, 6, 24)}, ValueError, "inputs_embeds"),
    ({"past_key_values": transformers.DynamicCache()}, TypeError, "must be a CortadoCache"),
    ({"token_type_ids": torch.ones(1, 6)}, TypeError, "token_type_ids"),
    ({"labels": torch.ones(1, 5, dtype=torch.int64)}, ValueError, "labels of shape"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_not_read_is_refused(number):
    options, kind, word = REFUSED[number]
    model = small({"mixer": "gla"})
    with pytest.raises(kind, match=word) as caught:
        model(**TOKENS, **options)
    assert "\n" not in str(caught.value)


def test_what_changes_nothing_is_taken():
    model = small({"mixer": "gla"})
    expected = model(**TOKENS).logits
    for options in ({"token_type_ids": None, "output_attentions": False, "inputs_embeds": None}, {"position_ids": torch.arange(6)[None]},
                    {"attention_mask": torch.ones(1, 6, dtype=torch.bool)}, {"cu_seq_lens_q": torch.tensor([0, 6]), "max_length_q": 6},
                    {"seq_idx": torch.ones(1, 6)}):  # fmt: skip
        assert torch.equal(model(**TOKENS, **options).logits, expected)
    assert isinstance(model(**TOKENS, return_dict=False), tuple)
    for name in ("output_hidden_states", "output_attentions"):
        setattr(model.config, name, True)
        with pytest.raises(ValueError, match=name):
            model(**TOKENS)
        setattr(model.config, name, False)


def test_documents_behind_a_cache():
    model = small({"mixer": "gla"})
    cache = model(**TOKENS, use_cache=True).past_key_values
    model(**TOKENS, past_key_values=cache, position_ids=torch.arange(6, 12)[None])
    for positions in (torch.arange(6), torch.tensor([12, 13, 0, 1, 2, 3]), torch.arange(30, 36)):
        with pytest.raises(ValueError, match="position_ids|cache"):
            model(**TOKENS, past_key_values=cache, position_ids=positions[None])
