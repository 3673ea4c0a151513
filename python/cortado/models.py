"""Whole language models: cortado.load("runs/books"), or cortado.models.LanguageModel(config) with random weights."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import shutil
import typing

import torch

from cortado._decoder import Decoder, ModelState
from cortado._parts import Embedding, Part, State, be_tensor, checked, one_line, plain


class Block(Part):
    """A residual block: x += mixer(norm x), x += feed_forward(norm x). x [B, T, dim] -> [B, T, dim]."""

    def __init__(self, config: dict[str, typing.Any], layer: int, device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__({"part": "block", "config": config, "layer": layer}, device, dtype)
        # As transformers sets them: nothing of the block is kept for its backward, which computes it once more.
        self.gradient_checkpointing = False
        self._gradient_checkpointing_func: typing.Callable[..., torch.Tensor] | None = None

    def forward(self, x: torch.Tensor, state: State | None = None,
                cu_seqlens: torch.Tensor | None = None) -> tuple[torch.Tensor, State | None]:
        if self.gradient_checkpointing and self.training and state is None and self._gradient_checkpointing_func:
            return self._gradient_checkpointing_func(lambda y: self.run([y], None, cu_seqlens)[0], x), None
        return self.run([x], state, cu_seqlens)


def layer_count(config: dict[str, typing.Any]) -> int:
    """Of a config as torch.ops.cortado.config gives it."""
    layers = config["layers"]
    return layers if isinstance(layers, int) else sum(entry["repeat"] for entry in layers)


class LanguageModel(Part):
    """A model as the program has it: `config` is a config file's object, with a vocabulary. Its weights are drawn from
    torch's generator. `tokenizer`: that of the run that it was loaded from, else None.

    The state dict has the names of the program's checkpoints."""

    embedding: Embedding

    def __init__(self, config: dict[str, typing.Any], device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        config = json.loads(checked(torch.ops.cortado.config, json.dumps(config)))
        # What lies before the first block and behind the last does not depend on those between.
        ends = {**config, "layers": 1, "mixer": config.get("mixer") or config["layers"][0]["mixer"]}
        super().__init__({"part": "embedding", "config": ends}, device, dtype)
        self.config = config
        self.tokenizer: Tokenizer | None = None
        self._norm, self._logits, self._loss = (json.dumps({"part": part, "config": ends}) for part in ("norm", "logits", "loss"))
        self.layers = torch.nn.ModuleList(Block(config, layer, device, dtype) for layer in range(layer_count(config)))

    @property
    def calls_head(self) -> bool:
        """Whether the head is more than its weights: an adapter, a hook, a module of another's."""
        head = self._modules.get("head")
        return head is not None and not plain(head)

    @property
    def causal(self) -> bool:
        return bool(self.config.get("causal", True))

    def hidden(self, tokens: torch.Tensor, state: ModelState | None = None,
               cu_seqlens: torch.Tensor | None = None) -> tuple[torch.Tensor, ModelState | None]:
        """What the last block leaves, before the final norm: tokens int64 [B, T] -> [B, T, dim]."""
        be_tensor(tokens, "tokens", "model")
        if tokens.dim() != 2 or tokens.dtype != torch.int64:
            raise ValueError(f"[model] expected int64 tokens [B, T], got {tokens.dtype} {list(tokens.shape)}")
        x, position = self.run([tokens], state[0] if state else None, cu_seqlens)
        after = [position]
        for number, layer in enumerate(self.layers):
            x, left = layer(x, state[number + 1] if state else None, cu_seqlens)
            after.append(left)
        return x, typing.cast(ModelState, after) if state else None

    def normalized(self, hidden: torch.Tensor) -> torch.Tensor:
        """The final norm of hidden(), which logits() has in itself."""
        return self.run([hidden], None, None, self._norm)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of hidden(): [B, T, dim] -> [B, T, vocabulary]."""
        return self.run([hidden], None, None, self._logits)[0]

    def forward(self, tokens: torch.Tensor, state: ModelState | None = None,
                cu_seqlens: torch.Tensor | None = None) -> tuple[torch.Tensor, ModelState | None]:
        """Logits [B, T, vocabulary], and the state after the tokens if one was given (state(rows) is the first)."""
        x, after = self.hidden(tokens, state, cu_seqlens)
        return self.logits(x), after

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor, cu_seqlens: torch.Tensor | None = None) -> torch.Tensor:
        """Mean cross-entropy in nats a token; targets as tokens, below 0: not counted. Logits of a part of the vocabulary
        exist at a time."""
        be_tensor(tokens, "tokens", "model")
        be_tensor(targets, "targets", "model")
        if targets.shape != tokens.shape or targets.dtype != torch.int64:
            raise ValueError(f"[model] expected int64 targets {list(tokens.shape)}, got {targets.dtype} {list(targets.shape)}")
        return self.loss_of(self.hidden(tokens, None, cu_seqlens)[0], targets)

    def loss_of(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The same of hidden()."""
        if self.calls_head:
            return loss_of_logits(self.logits(hidden), targets)
        return self.run([hidden, targets], None, None, self._loss)[0]

    def state(self, rows: int = 1) -> ModelState:
        """Before the first token. Its size never grows unless the config has softmax layers."""
        if not self.causal:
            raise ValueError("[model] a model with \"causal\": false reads whole sequences and has no state")
        return [part.zero_state(rows) for part in (self, *typing.cast(typing.Iterable[Part], self.layers))]

    @torch.no_grad()
    def generate(self, prompt: str | torch.Tensor, tokens: int = 100, *, temperature: float = 0.0, top_k: int = 0,
                 top_p: float = 1.0, seed: int | None = None, stops: typing.Sequence[int] | None = None) -> str | torch.Tensor:
        """Goes on with a text (as text, with the run's tokenizer) or with tokens int64 [B, T] (as [B, at most `tokens`]).

        At temperature 0 the likeliest token each time; else drawn among the `top_k` likeliest (0: all) that have `top_p` of
        the probability together: from torch's generator, or from one of its own with `seed`. stops: tokens that end a row,
        which is filled up with the one that ended it; of a text, which ends before it, the tokenizer's unless given, as
        `cortado generate` ends it."""
        check_sampling(tokens, temperature, top_k, top_p)
        draw = functools.partial(sample, temperature=temperature, top_k=top_k, top_p=top_p,
                                 generator=None if seed is None else torch.Generator(self._device).manual_seed(seed))  # fmt: skip
        with evaluating(self):
            if isinstance(prompt, str):
                return self._continue_text(prompt, tokens, draw, stops)
            return self._continue(prompt, tokens, draw, stops or ())

    def _continue_text(self, text: str, tokens: int, draw: Draw, stops: typing.Sequence[int] | None) -> str:
        if self.tokenizer is None:
            raise ValueError("[generate] the model has no tokenizer: give tokens")
        ends = self.tokenizer.stops if stops is None else stops
        read = torch.tensor([self.tokenizer.encode_document(text)], dtype=torch.int64, device=self._device)
        written = self._continue(read, tokens, draw, ends)[0].tolist()
        end = next((place for place, token in enumerate(written) if token in ends), len(written))
        return self.tokenizer.decode(written[:end])

    def _continue(self, prompt: torch.Tensor, tokens: int, draw: Draw, stops: typing.Sequence[int]) -> torch.Tensor:
        be_tensor(prompt, "a prompt that is no text", "generate")
        if prompt.dim() != 2 or prompt.shape[1] == 0:
            raise ValueError(f"[generate] expected at least one token a row, got {list(prompt.shape)}")
        state = self.state(prompt.shape[0])
        found: list[torch.Tensor] = []
        for part in prompt.split(512, dim=1):
            x, after = self.hidden(part, state)
            state = typing.cast(ModelState, after)
        logits = self.logits(x[:, -1:])[:, 0]
        decoder = Decoder(functools.partial(LanguageModel.forward, self), state)  # a subclass's forward may be another
        ends = torch.tensor(list(stops), dtype=torch.int64, device=prompt.device)
        ended = torch.zeros(prompt.shape[0], 1, dtype=torch.bool, device=prompt.device)
        for _ in range(tokens):
            if found:
                logits = decoder(found[-1])
            token = draw(logits)
            found.append(torch.where(ended, found[-1], token) if found else token)
            if stops:
                ended = torch.isin(found[-1], ends)
                if bool(ended.all()):
                    break
        return torch.cat(found, 1) if found else prompt[:, :0]

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device

    @classmethod
    def open(cls, run: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu",
             memory: dict[str, typing.Any] | None = None) -> typing.Self:
        """A language model from a run's folder (its best weights, else its last), ready to train further or to generate.
        memory: as the program's --memory, {"kind": "lola", "cache": 128} and so on, on the same weights."""
        names = {torch.float32: "float32", torch.float64: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
        if dtype not in names:
            raise ValueError(f"[load] expected a floating type, one of {', '.join(map(str, names))}, got {dtype}")
        if not pathlib.Path(run).is_dir():
            raise FileNotFoundError(f"[load] there is no folder {run}")
        opened = checked(torch.classes.cortado.LanguageModel, str(run), names[dtype], json.dumps(memory) if memory else "")
        model = cls(json.loads(opened.config()), device="meta")
        weights = {name: weight.detach().to(device, dtype) for name, weight in opened.parameters().items()}
        try:
            model.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            raise ValueError(one_line(error)) from None
        tokenizer = pathlib.Path(run) / "tokenizer"
        if tokenizer.is_dir():
            model.tokenizer = Tokenizer(tokenizer)
        return model

    def save(self, run: str | os.PathLike[str]) -> None:
        """A run's folder, as the program reads it: config.json, last.safetensors and the tokenizer. What was there of a
        trained run (best.safetensors) stays away: another folder is the safer place."""
        folder = pathlib.Path(run)
        folder.mkdir(parents=True, exist_ok=True)
        weights = self.state_dict()
        config = folder / "config.json.new"
        config.write_text(json.dumps(self.config, indent=2) + "\n")
        checked(torch.ops.cortado.save_weights, json.dumps(self.config), list(weights), list(weights.values()),
                str(folder / "last.safetensors"))
        config.replace(folder / "config.json")
        (folder / "best.safetensors").unlink(missing_ok=True)
        if self.tokenizer:
            self.tokenizer.save(folder / "tokenizer")


def loss_of_logits(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats a token of logits [B, T, V]; targets [B, T] below 0 are not counted."""
    wanted = targets.flatten().clamp(min=-1)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    total = torch.nn.functional.cross_entropy(wide.flatten(0, 1), wanted, ignore_index=-1, reduction="sum")
    return total / (wanted >= 0).sum().clamp(min=1)


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> typing.Iterator[None]:
    """Every module of it in evaluation, and as it was afterwards, whatever happens."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def check_sampling(tokens: int, temperature: float, top_k: int, top_p: float) -> None:
    for name, value, fits, expected in (
        ("tokens", tokens, tokens >= 0, "0 or more"), ("temperature", temperature, temperature >= 0, "0 or more"),
        ("top_k", top_k, top_k >= 0, "0 or more"), ("top_p", top_p, 0 < top_p <= 1, "above 0, at most 1"),
    ):  # fmt: skip
        if not fits:
            raise ValueError(f"[generate] {name} must be {expected}, got {value}")


Draw = typing.Callable[[torch.Tensor], torch.Tensor]  # logits [B, V] -> tokens int64 [B, 1]


def sample(logits: torch.Tensor, temperature: float, top_k: int, top_p: float,
           generator: torch.Generator | None = None) -> torch.Tensor:
    """A token a row: logits [B, V] -> int64 [B, 1]."""
    if temperature <= 0:
        return logits.argmax(-1, keepdim=True)
    logits = logits.float() / temperature
    if 0 < top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    if top_p < 1:
        ordered, order = logits.softmax(-1).sort(descending=True)
        gone = ordered.cumsum(-1) - ordered >= top_p
        logits = logits.masked_fill(torch.zeros_like(gone).scatter(-1, order, gone), -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)


class Tokenizer:
    """A run's tokenizer."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(folder)
        self._own = checked(torch.classes.cortado.Tokenizer, str(folder), "native")

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[pathlib.Path]]:
        return Tokenizer, (self.folder,)

    def __deepcopy__(self, _: typing.Any) -> Tokenizer:
        return self  # nothing of it changes

    def encode(self, text: str) -> list[int]:
        return list(self._own.encode([text])[0])

    def encode_document(self, text: str) -> list[int]:
        """With the token that begins texts, where the tokenizer has one."""
        return list(self._own.encode_document(text))

    def decode(self, tokens: list[int], skip_special: bool = False) -> str:
        return bytes(self._own.decode(tokens, skip_special).tolist()).decode("utf-8", errors="replace")

    @property
    def vocabulary(self) -> int:
        return int(self._own.vocabulary())

    @property
    def stops(self) -> list[int]:
        """Tokens that end an answer."""
        return list(self._own.stops())

    @property
    def special(self) -> dict[str, int | None]:
        """Tokens that begin and end texts, stand for what is unknown, and pad: "bos", "eos", "unk", "pad"."""
        return {name: token if token >= 0 else None for name, token in self._own.special().items()}

    @property
    def chat_template(self) -> str | None:
        """In Jinja's language, of a model that was taught to talk."""
        return self._own.chat_template() or None

    @property
    def prefix(self) -> list[int]:
        """What a whole text begins with."""
        return list(self._own.prefix())

    def save(self, folder: str | os.PathLike[str]) -> None:
        if self.folder.resolve() != pathlib.Path(folder).resolve():
            shutil.copytree(self.folder, folder, dirs_exist_ok=True)


def load(run: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu",
         memory: dict[str, typing.Any] | None = None) -> LanguageModel:
    """LanguageModel.open."""
    return LanguageModel.open(run, dtype=dtype, device=device, memory=memory)
