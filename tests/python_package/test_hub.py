"""cortado export --to-hub-folder: a folder that transformers opens, with a card that says what it is."""

import json

import pytest
import torch
import transformers

import cortado.transformers
from cortado.models import load


@pytest.mark.parametrize("mixer", [{"mixer": "macchiato", "latents": 8, "window": 9}, {"mixer": "softmax"}], ids=lambda it: it["mixer"])
def test_a_hub_folder(trained, cortado, tmp_path, root, mixer):
    run = trained(mixer=mixer)
    text = tmp_path / "text.txt"
    text.write_text((root / "data/tinyshakespeare.txt").read_text()[:2000])
    found = cortado("eval", run, "--text", text, "--context", "32,64", "--json")
    (tmp_path / "eval.json").write_text(found.stdout)
    folder = tmp_path / "hub"
    done = cortado("export", run, "--to-hub-folder", "--evaluation", tmp_path / "eval.json", "--out", folder)
    assert done.returncode == 0, done.stderr
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer("The king", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.equal(model(input_ids=tokens).logits, load(run)(tokens)[0])
    again = cortado("eval", folder, "--text", text, "--context", "32,64", "--json")
    assert [it["loss"] for it in json.loads(again.stdout)] == [it["loss"] for it in json.loads(found.stdout)]
    card = (folder / "README.md").read_text()
    loss = json.loads(found.stdout)[0]["loss"]
    parameters = f"{model.num_parameters():,}"
    for part in ("library_name: cortado", f"- {mixer['mixer']}\n", parameters, f"{loss:.4f}", "text, context 32", "validation, step",
                 "text.txt", "KV cache", "AutoModelForCausalLM", " 0..1 |"):  # fmt: skip
        assert part in card, part
    assert str(run.parent) not in card  # no paths of the machine that made it


def test_types_memories_and_bad_input(trained, cortado, tmp_path):
    run = trained(mixer={"mixer": "softmax"})
    folder = tmp_path / "window"
    done = cortado("export", run, "--to-hub-folder", "--memory", "window", "--window", 8, "--dtype", "bfloat16", "--out", folder)
    assert done.returncode == 0, done.stderr
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16 and model.config.cortado["mixer"]["window"] == 8
    (tmp_path / "bad.json").write_text("{}")
    for arguments, word in ((["--evaluation", tmp_path / "bad.json"], "--evaluation"), (["--evaluation", tmp_path / "no.json"], "no.json")):
        done = cortado("export", run, "--to-hub-folder", *arguments, "--out", tmp_path / "refused")
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and word in done.stderr
        assert not (tmp_path / "refused").exists()
    done = cortado("export", run, "--evaluation", tmp_path / "bad.json", "--out", tmp_path / "refused")
    assert done.returncode == 2 and "--to-hub-folder" in done.stderr
