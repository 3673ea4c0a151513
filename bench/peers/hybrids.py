"""Hybrids and state space models of published shapes: reading a prompt and writing tokens, against llama-cpp-python on the same GGUF file.

    build/bench-venv/bin/python bench/peers/hybrids.py [--only NAME ...] [--tokens 512 4096 8192] [--threads 2] [--rounds 3]

The weights are random: speed does not depend on what a model has learned. llama.cpp's own quantizer makes the file, of type Q4_0: blocks of 4
bits, but for small tensors and the embedding (Q6_K). Ours keeps the blocks of maps (int4), and the embedding in 8 bits. Both keep 16-bit
caches. Opening, from files that are in the page cache, and memory are measured in processes of their own.
Behind more than 4,096 tokens only writing is timed. Before it is timed, a small model of each architecture with float32 weights must give llama.cpp's logits to 1e-3 of the largest.
"""

import json
import statistics
import subprocess
import sys

from common import BUILD, RESULTS, ROOT, Bench, relative_error
from llama_peer import WRITTEN, Ours, Theirs, llama_module

sys.path.insert(0, str(ROOT / "tests/parity"))
MAMBA2 = dict(expand=2, state_size=128, n_groups=1, head_dim=64, tie_word_embeddings=True)
GRANITE = dict(mamba_n_groups=1, mamba_d_state=128, num_local_experts=0, num_experts_per_tok=0, tie_word_embeddings=True, position_embedding_type="nope",
               num_key_value_heads=4, num_attention_heads=12, embedding_multiplier=12.0, residual_multiplier=0.246,
               attention_multiplier=0.015625, logits_scaling=6.0)  # fmt: skip
FALCON = dict(mamba_n_groups=1, mamba_d_state=128, mamba_d_head=64, mamba_rms_norm=False, mamba_norm_before_gate=False, mamba_proj_bias=False,
              attention_bias=False, mlp_bias=False, tie_word_embeddings=False, num_key_value_heads=2, head_dim=64)  # fmt: skip
QWEN = dict(head_dim=256, linear_key_head_dim=128, linear_value_head_dim=128, tie_word_embeddings=True)


READ = 4096  # tokens at most, of which reading is timed
RWKV7 = dict(head_dim=64, norm_eps=1e-5, decay_low_rank_dim=64, a_low_rank_dim=64, v_low_rank_dim=32, gate_low_rank_dim=128)


def every_eighth(layers):
    return ["attention" if i % 8 == 4 else "mamba" for i in range(layers)]


def every_tenth(layers):
    return ["attention" if i % 10 == 5 else "mamba" for i in range(layers)]


def attends_at(layers, places):
    return ["full_attention" if i in places else "conv" for i in range(layers)]


# Name -> architecture of the file, class, small settings, published settings.
MODELS = {
    "Mamba-2-130M": ("mamba2", "Mamba2ForCausalLM", dict(MAMBA2, hidden_size=64, num_heads=2, num_hidden_layers=2, vocab_size=96),
                     dict(MAMBA2, hidden_size=768, num_heads=24, num_hidden_layers=24, vocab_size=50288)),
    "Granite-4.0-H-350M": ("granitehybrid", "GraniteMoeHybridForCausalLM",
                           dict(GRANITE, hidden_size=96, mamba_n_heads=6, num_hidden_layers=8, vocab_size=96, layer_types=every_eighth(8),
                                intermediate_size=64, shared_intermediate_size=64),
                           dict(GRANITE, hidden_size=768, mamba_n_heads=48, num_hidden_layers=32, vocab_size=100352, layer_types=every_eighth(32),
                                intermediate_size=2048, shared_intermediate_size=2048)),
    "Granite-4.0-H-1B": ("granitehybrid", "GraniteMoeHybridForCausalLM", None,
                         dict(GRANITE, hidden_size=1536, mamba_n_heads=48, num_hidden_layers=40, vocab_size=100352, layer_types=every_tenth(40),
                              intermediate_size=4096, shared_intermediate_size=4096)),
    "Falcon-H1-0.5B": ("falcon-h1", "FalconH1ForCausalLM",
                       dict(FALCON, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, mamba_d_ssm=192,
                            mamba_n_heads=3, vocab_size=96),
                       dict(FALCON, hidden_size=1024, num_hidden_layers=36, num_attention_heads=8, intermediate_size=2048, mamba_d_ssm=1536,
                            mamba_n_heads=24, vocab_size=32784)),
    "LFM2-350M": ("lfm2", "Lfm2ForCausalLM",
                  dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128,
                       vocab_size=96, layer_types=attends_at(3, [2])),
                  dict(hidden_size=1024, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=8, intermediate_size=6656,
                       vocab_size=65536, layer_types=attends_at(16, [2, 5, 8, 10, 12, 14]))),
    "Qwen3.5-0.8B": ("qwen35", "Qwen3_5ForCausalLM",
                     dict(QWEN, hidden_size=64, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1, linear_num_key_heads=2,
                          linear_num_value_heads=2, intermediate_size=96, vocab_size=96),
                     dict(QWEN, hidden_size=1024, num_hidden_layers=24, num_attention_heads=8, num_key_value_heads=2, linear_num_key_heads=16,
                          linear_num_value_heads=16, intermediate_size=3584, vocab_size=248320)),
    "RWKV-7-0.4B": ("rwkv7", "RWKV7ForCausalLM", dict(RWKV7, hidden_size=128, num_hidden_layers=3, intermediate_size=96, vocab_size=96),
                    dict(RWKV7, hidden_size=1024, num_hidden_layers=24, intermediate_size=4096, vocab_size=65536)),
}  # fmt: skip


def write_file(path, architecture, kind, settings):
    """Writes a model with random weights."""
    vocabulary = {"vocab_size": settings["vocab_size"]}
    bench.torch.manual_seed(1)
    if architecture == "rwkv7":
        return write_rwkv_gguf(path, rwkv_model("rwkv7", settings), keys=vocabulary)
    kind = getattr(transformers, kind)
    return write_linear_gguf(path, kind(kind.config_class(**settings)), architecture, keys=vocabulary, tokenizer="no_vocab")


def in_blocks(whole, file):
    """Has llama.cpp quantise a file to Q4_0."""
    llama = llama_module()
    options = llama.llama_model_quantize_default_params()
    options.nthread, options.ftype = bench.threads, llama.LLAMA_FTYPE_MOSTLY_Q4_0
    failed = llama.llama_model_quantize(str(whole).encode(), str(file).encode(), options)
    assert not failed, f"llama.cpp did not quantise {whole}"
    whole.unlink()


def written(name, architecture, kind, settings, quantised=False):
    """Writes a model's file and imports it. Returns the file and our folder."""
    path = RESULTS / f"{name}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        write_file(part, architecture, kind, settings)
        if quantised:
            in_blocks(part, path)
        else:
            part.rename(path)
    run = RESULTS / f"{name}-{'int4' if quantised else 'float32'}"
    if not (run / "config.json").exists():
        weights = ["--weights", "int4"] if quantised else []
        subprocess.run([str(BUILD / "bin/cortado"), "import", str(path), "--out", str(run), *weights], check=True, stdout=subprocess.DEVNULL)
    return path, run


def opened(side, path):
    script = [sys.executable, str(ROOT / "bench/peers/opened.py"), side, str(path)]
    runs = [json.loads(subprocess.run(script, check=True, capture_output=True, text=True).stdout) for _ in range(bench.rounds)]
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def measure_opening(name, path, run):
    ours, theirs = opened("ours", run), opened("theirs", path)
    for key, unit in (("seconds", "s"), ("peak", "MiB"), ("resident", "MiB")):
        bench.rows.append({"what": name, "against": "llama.cpp", "pass": key, "ours": ours[key], "theirs": theirs[key]})
        print(f"  {name:26} opening: {key:9} {ours[key]:10.2f} {unit:4} llama.cpp {theirs[key]:10.2f} {unit}", flush=True)


def check(name, architecture, kind, small):
    if small is None:  # the architecture of another model
        return True
    path, run = written(f"{name}-small", architecture, kind, small)
    tokens = bench.torch.randint(small["vocab_size"], (70,)).tolist()
    logits = [Ours(run, weights="float32").read(tokens), Theirs(path, 128, bench.threads).read(tokens)]
    return bench.expect(name, relative_error(*logits), 1e-3)


def measure(name, architecture, kind, settings):
    path, run = written(name, architecture, kind, settings, quantised=True)
    measure_opening(name, path, run)
    ours, theirs = Ours(run, weights="int4", cache="float16"), Theirs(path, max(bench.tokens) + WRITTEN * (4 * bench.rounds + 8), bench.threads)
    for count in bench.tokens:
        prompt = bench.torch.randint(settings["vocab_size"], (count,)).tolist()
        if count <= READ:
            bench.measure(f"{name}, int4", "llama.cpp", "prefill", count, lambda: ours.read(prompt), lambda: theirs.read(prompt))
        else:
            ours.read(prompt)
            theirs.read(prompt)
        bench.measure(f"{name}, int4", "llama.cpp", f"{WRITTEN} tokens", count, lambda: ours.write(13), lambda: theirs.write(13))


bench = Bench("hybrids", __doc__, rounds=3, tokens=(512, 4096, 8192), setting="random weights of 4 bits, one sequence", names=list(MODELS))
import transformers  # noqa: E402
from gguf_linear_files import write_linear_gguf  # noqa: E402
from gguf_rwkv_files import rwkv_model, write_rwkv_gguf  # noqa: E402

RESULTS.mkdir(parents=True, exist_ok=True)
bench.torch.classes.load_library(str(BUILD / "lib/libcortado.so"))
for name in bench.only:
    architecture, kind, small, published = MODELS[name]
    if check(name, architecture, kind, small):
        measure(name, architecture, kind, published)
bench.finish()
