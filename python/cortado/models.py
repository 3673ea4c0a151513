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
    """A residual block: x += mixer(norm x), x += feed_forward(norm x). x [B, T, dim] -> [B, T, dim].

    Args:
        config: Object of a config file, as torch.ops.cortado.config completes it.
        layer: Number of the block, from 0.
        device: Device of the weights.
        dtype: Type of the weights.
    """

    def __init__(self, config: dict[str, typing.Any], layer: int, device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__({"part": "block", "config": config, "layer": layer}, device, dtype)
        # Set by transformers. With checkpointing, backward recomputes the block instead of saving activations.
        self.gradient_checkpointing = False
        self._gradient_checkpointing_func: typing.Callable[..., torch.Tensor] | None = None

    def forward(self, x: torch.Tensor, state: State | None = None,
                cu_seqlens: torch.Tensor | None = None) -> tuple[torch.Tensor, State | None]:
        """Computes the block.

        Args:
            x: [B, T, dim]; with cu_seqlens [1, T, dim]. After layers that share values (RWKV-7) it has 2 dim channels: the last
                dim are the values of the first such layer.
            state: State before x. None: none is made.
            cu_seqlens: Bounds of packed sequences, int64 [N + 1].

        Returns:
            The block's output, shaped like x (2 dim channels, if it has added its values), and the state after it if one was given.
        """
        if self.gradient_checkpointing and self.training and state is None and self._gradient_checkpointing_func:
            return self._gradient_checkpointing_func(lambda y: self.run([y], None, cu_seqlens)[0], x), None
        return self.run([x], state, cu_seqlens)


def layer_count(config: dict[str, typing.Any]) -> int:
    """Returns the number of layers of a config that torch.ops.cortado.config has completed."""
    layers = config["layers"]
    return layers if isinstance(layers, int) else sum(entry["repeat"] for entry in layers)


class LanguageModel(Part):
    """A language model, as the program has it. Its weights are drawn from torch's generator.

    The state dict has the names of the program's checkpoints.

    Args:
        config: Object of a config file, with a vocabulary.
        device: Device of the weights.
        dtype: Type of the weights.

    Attributes:
        config: The config with every default filled in.
        tokenizer: Tokenizer of the run that the model was loaded from, else None.
        layers: The blocks.

    Raises:
        ValueError: The config is wrong. The line names the key.

    Example:
        >>> config = {"vocabulary": 256, "dim": 64, "heads": 4, "layers": 2, "mixer": {"mixer": "gla"}}
        >>> model = cortado.models.LanguageModel(config)
        >>> logits, _ = model(torch.randint(256, (2, 16)))
    """

    embedding: Embedding

    def __init__(self, config: dict[str, typing.Any], device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        config = json.loads(checked(torch.ops.cortado.config, json.dumps(config)))
        # The parts before the first block and after the last one do not depend on the blocks.
        ends = {**config, "layers": 1, "mixer": config.get("mixer") or config["layers"][0]["mixer"]}
        super().__init__({"part": "embedding", "config": ends}, device, dtype)
        self.config = config
        self.tokenizer: Tokenizer | None = None
        self._norm, self._logits, self._loss = (json.dumps({"part": part, "config": ends}) for part in ("norm", "logits", "loss"))
        self.layers = torch.nn.ModuleList(Block(config, layer, device, dtype) for layer in range(layer_count(config)))

    @property
    def calls_head(self) -> bool:
        """Whether the head is called: it has an adapter or a hook, or is another module than cortado's."""
        head = self._modules.get("head")
        return head is not None and not plain(head)

    @property
    def causal(self) -> bool:
        """Whether a token sees only the tokens before it."""
        return bool(self.config.get("causal", True))

    def hidden(self, tokens: torch.Tensor, state: ModelState | None = None,
               cu_seqlens: torch.Tensor | None = None) -> tuple[torch.Tensor, ModelState | None]:
        """Computes all blocks, without the final norm.

        Args:
            tokens: int64 [B, T]; with cu_seqlens [1, T].
            state: State before the tokens, of state(). None: none is made.
            cu_seqlens: Bounds of packed sequences, int64 [N + 1].

        Returns:
            The last block's output [B, T, dim], and the state after the tokens if one was given.

        Raises:
            TypeError: tokens is not a tensor.
            ValueError: tokens has another shape or type.
        """
        be_tensor(tokens, "tokens", "model")
        if tokens.dim() != 2 or tokens.dtype != torch.int64:
            raise ValueError(f"[model] expected int64 tokens [B, T], got {tokens.dtype} {list(tokens.shape)}")
        x, position = self.run([tokens], state[0] if state else None, cu_seqlens)
        after = [position]
        for number, layer in enumerate(self.layers):
            x, left = layer(x, state[number + 1] if state else None, cu_seqlens)
            after.append(left)
        x = x[..., : self.config["dim"]]  # behind them may be the values that layers share
        return x, typing.cast(ModelState, after) if state else None

    def normalized(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the final norm of what hidden() returns. logits() applies it itself."""
        return self.run([hidden], None, None, self._norm)[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns the logits [B, T, vocabulary] of what hidden() returns."""
        return self.run([hidden], None, None, self._logits)[0]

    def forward(self, tokens: torch.Tensor, state: ModelState | None = None,
                cu_seqlens: torch.Tensor | None = None) -> tuple[torch.Tensor, ModelState | None]:
        """Computes logits.

        Args:
            tokens: int64 [B, T]; with cu_seqlens [1, T].
            state: State before the tokens; state(rows) is the first one. None: none is made.
            cu_seqlens: Bounds of packed sequences, int64 [N + 1].

        Returns:
            Logits [B, T, vocabulary], and the state after the tokens if one was given.

        Raises:
            TypeError: tokens is not a tensor.
            ValueError: tokens has another shape or type.

        Example:
            >>> logits, state = model(tokens, model.state(rows=2))
            >>> logits, state = model(logits[:, -1:].argmax(-1), state)
        """
        x, after = self.hidden(tokens, state, cu_seqlens)
        return self.logits(x), after

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor, cu_seqlens: torch.Tensor | None = None) -> torch.Tensor:
        """Computes the mean cross-entropy in nats per token. Only a part of the vocabulary's logits exists at a time.

        Args:
            tokens: int64 [B, T].
            targets: int64 [B, T], the next token of each. Those below 0 are not counted.
            cu_seqlens: Bounds of packed sequences, int64 [N + 1].

        Returns:
            The loss, a scalar.

        Raises:
            TypeError: tokens or targets is not a tensor.
            ValueError: They have another shape or type.
        """
        be_tensor(tokens, "tokens", "model")
        be_tensor(targets, "targets", "model")
        if targets.shape != tokens.shape or targets.dtype != torch.int64:
            raise ValueError(f"[model] expected int64 targets {list(tokens.shape)}, got {targets.dtype} {list(targets.shape)}")
        return self.loss_of(self.hidden(tokens, None, cu_seqlens)[0], targets)

    def loss_of(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Returns the loss of what hidden() returns."""
        if self.calls_head:
            return loss_of_logits(self.logits(hidden), targets)
        return self.run([hidden, targets], None, None, self._loss)[0]

    def state(self, rows: int = 1) -> ModelState:
        """Returns the state before the first token. Its size stays constant unless the config has softmax layers.

        Args:
            rows: Sequences of the batch.

        Raises:
            ValueError: The model is bidirectional ("causal": false).
        """
        if not self.causal:
            raise ValueError("[model] a model with \"causal\": false reads whole sequences and has no state")
        return [part.zero_state(rows) for part in (self, *typing.cast(typing.Iterable[Part], self.layers))]

    @torch.no_grad()
    def generate(self, prompt: str | torch.Tensor, tokens: int = 100, *, temperature: float = 0.0, top_k: int = 0,
                 top_p: float = 1.0, seed: int | None = None, stops: typing.Sequence[int] | None = None) -> str | torch.Tensor:
        """Continues a text, or a batch of token sequences.

        Args:
            prompt: A text, read by the run's tokenizer, or tokens int64 [B, T].
            tokens: Most tokens that are generated per row.
            temperature: 0: the likeliest token each time. Above 0 tokens are drawn.
            top_k: Draws among so many of the likeliest tokens; 0: all.
            top_p: Draws among the likeliest tokens that have this probability together.
            seed: Seed of a generator for this call. None: torch's generator.
            stops: Tokens that end a row, which is filled up with the token that ended it. None: for a text the
                tokenizer's, as in `cortado generate`; for tokens none.

        Returns:
            The text that follows, without the token that ended it, or the tokens that follow, int64 [B, at most tokens].

        Raises:
            TypeError: The prompt is neither a text nor a tensor.
            ValueError: A number is out of its range, the prompt is empty, or the model has no tokenizer for a text.

        Example:
            >>> print(cortado.load("runs/books").generate("Once upon", 50, temperature=0.8))
        """
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
        """Opens a language model from a run's folder: its best weights, or its last if there are no best ones.

        Args:
            run: Folder that `cortado train`, `linearize` or `import` made, or that save() or save_pretrained wrote.
            dtype: Type of the weights: torch.float32, float64, bfloat16 or float16.
            device: Device of the weights.
            memory: Another memory on the same weights, as the program's --memory: {"kind": "lola", "cache": 128}.

        Returns:
            The model, ready to train further or to generate.

        Raises:
            FileNotFoundError: There is no such folder.
            ValueError: The folder has another program's model, the type is none of these, or the memory is wrong.
        """
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
        """Writes a run's folder that the program reads: config.json, last.safetensors and the tokenizer.

        A best.safetensors of a trained run in that folder is deleted, so another folder is the safer place.

        Args:
            run: The folder. It is made if it is not there.
        """
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
    """Returns the mean cross-entropy in nats per token of logits [B, T, V]. Targets [B, T] below 0 are not counted."""
    wanted = targets.flatten().clamp(min=-1)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    total = torch.nn.functional.cross_entropy(wide.flatten(0, 1), wanted, ignore_index=-1, reduction="sum")
    return total / (wanted >= 0).sum().clamp(min=1)


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> typing.Iterator[None]:
    """Puts every module into evaluation mode, and back into its own mode afterwards, also after an error."""
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
    """Returns one token per row: logits [B, V] -> int64 [B, 1]."""
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
    """The tokenizer of a run.

    Args:
        folder: The run's folder tokenizer/.

    Raises:
        ValueError: The folder has no tokenizer that can be read.

    Example:
        >>> tokenizer = cortado.load("runs/books").tokenizer
        >>> tokenizer.decode(tokenizer.encode("Once upon"))
        'Once upon'
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = pathlib.Path(folder)
        self._own = checked(torch.classes.cortado.Tokenizer, str(folder), "native")

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[pathlib.Path]]:
        return Tokenizer, (self.folder,)

    def __deepcopy__(self, _: typing.Any) -> Tokenizer:
        return self  # nothing of it changes

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text."""
        return list(self._own.encode([text])[0])

    def encode_document(self, text: str) -> list[int]:
        """Returns the tokens of a whole text: they begin with the token that begins texts, if the tokenizer has one."""
        return list(self._own.encode_document(text))

    def decode(self, tokens: list[int], skip_special: bool = False) -> str:
        """Returns the text of tokens, without special tokens if skip_special. Broken UTF-8 becomes U+FFFD."""
        return bytes(self._own.decode(tokens, skip_special).tolist()).decode("utf-8", errors="replace")

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
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
        """Chat template in Jinja's language, if the model has one."""
        return self._own.chat_template() or None

    @property
    def prefix(self) -> list[int]:
        """Tokens that a whole text begins with."""
        return list(self._own.prefix())

    def export(self, folder: str | os.PathLike[str]) -> bool:
        """Writes the tokenizer.json of Hugging Face's libraries, tokenizer_config.json and generation_config.json.

        Args:
            folder: An existing folder.

        Returns:
            False, and nothing is written, if the tokenizer is not a byte-pair encoding.

        Raises:
            ValueError: The format cannot express a step of the tokenizer.
        """
        return bool(checked(self._own.export_to, str(folder)))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Copies the tokenizer's files into a folder."""
        if self.folder.resolve() != pathlib.Path(folder).resolve():
            shutil.copytree(self.folder, folder, dirs_exist_ok=True)


def load(run: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu",
         memory: dict[str, typing.Any] | None = None) -> LanguageModel:
    """Opens a language model from a run's folder: its best weights, or its last if there are no best ones.

    Args:
        run: Folder that `cortado train`, `linearize` or `import` made, or that save() or save_pretrained wrote.
        dtype: Type of the weights: torch.float32, float64, bfloat16 or float16.
        device: Device of the weights.
        memory: Another memory on the same weights, as the program's --memory: {"kind": "lola", "cache": 128}.

    Returns:
        The model, ready to train further or to generate.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The folder has another program's model, the type is none of these, or the memory is wrong.

    Example:
        >>> model = cortado.load("runs/books", dtype=torch.bfloat16)
    """
    return LanguageModel.open(run, dtype=dtype, device=device, memory=memory)
