"""Both sides of a comparison with llama-cpp-python: a model that reads a prompt in pieces, and writes tokens behind it."""

import importlib.util
import json
import sys

from ggml_library import package_spec

WRITTEN, CHUNK = 32, 512


def llama_module():
    """Imports the package, not the script llama_cpp.py, which comes first on the path."""
    spec = package_spec()
    module = sys.modules["llama_cpp"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Ours:
    def __init__(self, run, memory=None, weights="int8", cache=None):
        """`cache`: the type of cached keys and values; None: float32."""
        import torch  # after the threads are pinned

        self.torch = torch
        self.model = torch.classes.cortado.LanguageModel(str(run), weights, json.dumps(memory) if memory else "")
        if cache:
            self.model.set_cache_type(cache)

    def read(self, tokens):
        for start in range(0, len(tokens), CHUNK):
            logits = self.model.read(self.torch.tensor([tokens[start : start + CHUNK]]), start == 0)
        return logits[0]

    def write(self, token, count=WRITTEN):
        for _ in range(count):
            logits = self.model.read(self.torch.tensor([[token]]), False)
        return logits[0]


class Theirs:
    def __init__(self, path, context, threads, cache=None):
        """`cache`: ggml's number of the type of cached keys and values, 0 for float32. None: llama.cpp's default, float16."""
        types = dict(n_ctx=context, n_batch=CHUNK, n_threads=threads, n_threads_batch=threads, type_k=cache, type_v=cache)
        self.model = llama_module().Llama(str(path), verbose=False, **types)

    def read(self, tokens):
        self.model.reset()
        self.model.eval(tokens)
        return self.logits()

    def write(self, token, count=WRITTEN):
        for _ in range(count):
            self.model.eval([token])
        return self.logits()

    def logits(self):
        import numpy
        import torch

        pointer = self.model._ctx.get_logits_ith(-1)
        return torch.from_numpy(numpy.ctypeslib.as_array(pointer, shape=(self.model.n_vocab(),)).copy())
