"""Models of the program in Hugging Face transformers: `import cortado.transformers` makes the Auto classes know them.

    model = AutoModelForCausalLM.from_pretrained("runs/linear")     a run's folder, or what save_pretrained wrote
    tokenizer = AutoTokenizer.from_pretrained("runs/linear")
    model.generate(**tokenizer("Once", return_tensors="pt"))        its cache is the model's state: of one size

Padding on either side is left out before the model sees it, so that it changes nothing."""

from __future__ import annotations

import json
import os
import pathlib
import typing

import torch
import transformers
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from cortado import models
from cortado._decoder import ModelState
from cortado._parts import Linear, checked

_OURS = ("model_type", "architectures", "transformers")  # keys of config.json beside the program's


class CortadoConfig(transformers.PreTrainedConfig):
    """`cortado`: the object of the program's config.json, with a vocabulary; the file itself is that object, with
    "model_type" and, under "transformers", what is transformers' own."""

    model_type = "cortado"
    keys_to_ignore_at_inference: typing.ClassVar[list[str]] = ["past_key_values"]

    cortado: dict[str, typing.Any] | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    final_logit_softcapping: float | None = None
    tie_word_embeddings: bool = False  # the head reads the embedding's own weight
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **others: typing.Any) -> None:
        if self.cortado is not None:
            self.cortado = json.loads(checked(torch.ops.cortado.config, json.dumps(self.cortado)))
            self.vocab_size, self.hidden_size = self.cortado["vocabulary"], self.cortado["dim"]
            self.num_hidden_layers, self.num_attention_heads = models.layer_count(self.cortado), self.cortado["heads"]
            self.final_logit_softcapping = self.cortado.get("final_softcap") or None
        super().__post_init__(**others)

    @classmethod
    def from_dict(cls, config_dict: dict[str, typing.Any], **arguments: typing.Any) -> typing.Any:
        if "dim" in config_dict:
            own = {key: value for key, value in config_dict.items() if key not in _OURS}
            config_dict = {**config_dict.get("transformers", {}), "architectures": config_dict.get("architectures"), "cortado": own}
        return super().from_dict(config_dict, **arguments)

    @staticmethod
    def _as_file(all_of_it: dict[str, typing.Any]) -> dict[str, typing.Any]:
        own = all_of_it.pop("cortado", None)
        known: dict[str, typing.Any] = {key: all_of_it.pop(key) for key in ("model_type", "architectures") if key in all_of_it}
        return all_of_it | known if own is None else {**own, **known, "transformers": all_of_it}

    def to_dict(self) -> dict[str, typing.Any]:
        return self._as_file(super().to_dict())

    def to_diff_dict(self) -> dict[str, typing.Any]:
        return {**self.to_dict(), "model_type": self.model_type}


class CortadoCache(Cache):
    """The state of a model after the tokens it has read: it has a row for every sequence, and does not grow with them."""

    def __init__(self, state: ModelState | None = None, length: int = 0) -> None:
        super().__init__(layers=[])
        self.state, self.length = state, length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def bytes(self) -> int:
        """What it takes in memory."""
        return sum(t.numel() * t.element_size() for part in self.state or [] for t in part.values())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.state is not None:
            self.state = [{name: t.index_select(0, indices.to(t.device)) for name, t in part.items()} for part in self.state]

    reorder_cache = batch_select_indices

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            self.state = [{name: t.repeat_interleave(repeats, 0) for name, t in part.items()} for part in self.state]

    def reset(self) -> None:
        self.state, self.length = None, 0

    def crop(self, tokens_to_remove: int) -> None:
        raise ValueError("[cache] a state of one size cannot forget its last tokens: keep a copy of it from before them")

    @property
    def is_compileable(self) -> bool:
        return False


class CortadoBackbone(models.LanguageModel):
    """A model of the program, called as transformers' models without a head are: what lies before the head."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None,
                past_key_values: CortadoCache | None = None, use_cache: bool | None = None,
                **others: typing.Any) -> BaseModelOutputWithPast:  # fmt: skip
        refuse(others)
        cache = past_key_values if past_key_values is not None else CortadoCache() if use_cache else None
        hidden = self.read(input_ids, mask_of(input_ids, attention_mask), cache)
        return BaseModelOutputWithPast(last_hidden_state=self.normalized(hidden), past_key_values=cache)

    def read(self, tokens: torch.Tensor, mask: torch.Tensor | None, cache: CortadoCache | None) -> torch.Tensor:
        """hidden() of the tokens that the mask has, after those of the cache, which gets what is left."""
        state = None
        if cache is not None:
            state = cache.state or self.state(tokens.shape[0])
        if mask is None:
            x, after = self.hidden(tokens, state)
        else:  # without the padding, one sequence after the other
            lengths = mask.sum(1)
            bounds = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
            packed, after = self.hidden(tokens[mask][None], state, bounds)
            # Padding has what the token before it has, so that the last column is that of every row's last token.
            nearest = bounds[:-1, None] + mask.cumsum(1).sub(1).clamp(min=0)
            x = packed[0, nearest.clamp(max=packed.shape[1] - 1)]
        if cache is not None:
            cache.state, cache.length = after, cache.length + tokens.shape[1]
        return x


def refuse(options: dict[str, typing.Any]) -> None:
    """What transformers may ask of other models, and what would go wrong silently here."""
    for name in ("inputs_embeds", "output_hidden_states", "output_attentions"):
        if options.get(name) is not None and options[name] is not False:
            raise ValueError(f"[model] {name} is not known to cortado models")


def mask_of(tokens: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """Which of the tokens are no padding; None: all."""
    mask = None if attention_mask is None else attention_mask[:, -tokens.shape[1] :].bool()
    return None if mask is None or bool(mask.all()) else mask


class CortadoForCausalLM(transformers.PreTrainedModel, transformers.GenerationMixin):
    config_class = CortadoConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _is_stateful = True  # assisted decoding would have to take tokens back
    _no_split_modules: typing.ClassVar[list[str]] = ["Block"]
    _keys_to_ignore_on_load_unexpected: typing.ClassVar[list[str]] = []

    def __init__(self, config: CortadoConfig) -> None:
        super().__init__(config)
        if config.cortado is None:
            raise ValueError("[config] CortadoConfig needs cortado=, the object of a config of the program's")
        self.model = CortadoBackbone(config.cortado)
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """They were drawn when the model was made, as the program draws them."""

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: torch.nn.Module) -> None:
        raise ValueError("[model] the vocabulary's size is the config's: make another model")

    def get_output_embeddings(self) -> torch.nn.Module | None:
        tied = not hasattr(self.model, "head")
        return Linear(self.model.embedding.weight, getattr(self.model, "head_bias", None)) if tied else self.model.head

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None,
                past_key_values: CortadoCache | None = None, labels: torch.Tensor | None = None,
                use_cache: bool | None = None, logits_to_keep: int | torch.Tensor = 0, return_dict: bool | None = None,
                num_items_in_batch: int | torch.Tensor | None = None,
                **others: typing.Any) -> CausalLMOutputWithPast | tuple[typing.Any, ...]:  # fmt: skip
        """attention_mask [B, T] or [B, tokens before + T]: 0 for padding, which changes nothing wherever it stands. labels
        as input_ids: the loss is the mean over the next tokens; below 0 is not counted. num_items_in_batch: what the sum is
        divided by instead, where a step has several batches (the Trainer's gradient accumulation)."""
        refuse(others)
        use_cache = use_cache if use_cache is not None else self.config.use_cache and not self.training
        cache = past_key_values if past_key_values is not None else CortadoCache() if use_cache else None
        mask = mask_of(input_ids, attention_mask)
        hidden = self.model.read(input_ids, mask, cache)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        loss = None
        if labels is not None:
            targets = torch.cat([labels[:, 1:], labels.new_full((labels.shape[0], 1), -100)], 1)
            if mask is not None:  # nothing is expected of padding
                targets = targets.masked_fill(~mask, -100)
            loss = self.model.loss_of(hidden, targets)
            if num_items_in_batch is not None:
                loss = loss * (targets >= 0).sum() / num_items_in_batch
        logits = self.model.logits(hidden[:, kept])
        if return_dict is False:
            return tuple(part for part in (loss, logits, cache) if part is not None)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)

    def _prepare_cache_for_generation(self, generation_config: typing.Any, model_kwargs: dict[str, typing.Any],
                                      *others: typing.Any, **more: typing.Any) -> None:
        if generation_config.cache_implementation is not None:
            raise ValueError(f"[generate] cache_implementation={generation_config.cache_implementation!r}: the cache of a "
                             "cortado model is its state, there is no other")
        if generation_config.use_cache and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = CortadoCache()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: typing.Any, *arguments: typing.Any, **options: typing.Any) -> typing.Any:
        """What transformers' own does; a run's folder of the program (config.json with best.safetensors or last.safetensors)
        as well, with `memory` as cortado.load has it."""
        folder = pathlib.Path(str(pretrained_model_name_or_path))
        own = [folder / name for name in ("best.safetensors", "last.safetensors")]
        if not any(path.is_file() for path in own) or (folder / "model.safetensors").is_file():
            return super().from_pretrained(pretrained_model_name_or_path, *arguments, **options)
        return cls._from_run(folder, options)

    @classmethod
    def _from_run(cls, folder: pathlib.Path, options: dict[str, typing.Any]) -> typing.Any:
        dtype = options.get("dtype", options.get("torch_dtype"))
        if isinstance(dtype, str):
            dtype = torch.float32 if dtype == "auto" else getattr(torch, dtype)
        loaded = CortadoBackbone.open(folder, dtype=dtype or torch.float32, memory=options.get("memory"))
        config = options.get("config") or CortadoConfig.from_dict({**loaded.config, "model_type": "cortado"})
        config.dtype, config.name_or_path = dtype or torch.float32, str(folder)
        config.cortado = loaded.config
        with torch.device("meta"):
            model = cls(config)
        model.model = loaded
        stops = loaded.tokenizer.stops if loaded.tokenizer else []
        model.generation_config = transformers.GenerationConfig(eos_token_id=stops or None)
        return model.to(_device(options.get("device_map"))).eval()

    def save_pretrained(self, save_directory: str | os.PathLike[str], *arguments: typing.Any, **options: typing.Any) -> None:
        """As transformers has it; the program opens the folder as well (`cortado generate FOLDER`)."""
        super().save_pretrained(save_directory, *arguments, **options)
        if self.model.tokenizer:
            self.model.tokenizer.save(pathlib.Path(save_directory) / "tokenizer")


def _device(place: typing.Any) -> torch.device:
    """Of a device_map, which puts the whole model into one place."""
    if isinstance(place, dict):
        if set(place) != {""}:
            raise ValueError(f"[model] device_map {place}: a cortado model is on one device, as {{'': 'cpu'}}")
        place = place[""]
    if place == "auto":
        place = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(place or "cpu")


class CortadoTokenizer(transformers.PreTrainedTokenizer):
    """The program's tokenizer of a run, in RUN/tokenizer: any kind, with its special tokens. A text is read as the program
    reads it; padding is the tokenizer's own, else the token that ends texts, else token 0 (the mask leaves it out)."""

    vocab_files_names: typing.ClassVar[dict[str, str]] = {}
    model_input_names: typing.ClassVar[list[str]] = ["input_ids", "attention_mask"]

    def __init__(self, folder: str | os.PathLike[str], **options: typing.Any) -> None:
        self.own = models.Tokenizer(folder)
        self._pieces = self._name_all()
        self._ids = {piece: number for number, piece in enumerate(self._pieces)}
        for role, number in self.own.special.items():
            options.setdefault(role + "_token", None if number is None else self._pieces[number])
        stops = self.own.stops
        if options.get("eos_token") is None and stops:
            options["eos_token"] = self._pieces[stops[0]]
        if options.get("pad_token") is None:
            options["pad_token"] = options.get("eos_token") or self._pieces[0]
        if options.get("chat_template") is None:
            options["chat_template"] = self.own.chat_template
        options.pop("tokenizer_file", None)
        super().__init__(**options)

    def _name_all(self) -> list[str]:
        """Texts of the tokens; where two have the same one, or none is a whole character, with their numbers."""
        names: dict[str, None] = {}
        for number in range(self.own.vocabulary):
            text = self.own.decode([number])
            names[text if text and "\ufffd" not in text and text not in names else f"{text}<{number}>"] = None
        return list(names)

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)

    def _tokenize(self, text: str, **unused: typing.Any) -> list[str]:
        return [self._pieces[token] for token in self.own.encode(text)]

    def _convert_token_to_id(self, token: str) -> int | None:
        return self._ids.get(token, self.own.special["unk"])

    def _convert_id_to_token(self, index: int) -> str:
        return self._pieces[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return self.own.decode([self._ids[token] for token in tokens])

    def _decode(self, token_ids: int | list[int], skip_special_tokens: bool = False, **unused: typing.Any) -> str:
        return self.own.decode([token_ids] if isinstance(token_ids, int) else list(token_ids), skip_special_tokens)

    def build_inputs_with_special_tokens(self, token_ids_0: list[int], token_ids_1: list[int] | None = None) -> list[int]:
        return [*self.own.prefix, *token_ids_0, *(token_ids_1 or [])]

    def save_pretrained(self, save_directory: str | os.PathLike[str], *arguments: typing.Any, **options: typing.Any) -> tuple[str, ...]:
        self.own.save(pathlib.Path(save_directory) / "tokenizer")
        return (str(pathlib.Path(save_directory) / "tokenizer"),)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: typing.Any, *arguments: typing.Any, **options: typing.Any) -> typing.Any:
        folder = pathlib.Path(str(pretrained_model_name_or_path))
        if not (folder / "tokenizer").is_dir():
            raise OSError(f"[tokenizer] {folder} has no tokenizer folder")
        kept = ("padding_side", "truncation_side", "model_max_length", "chat_template")
        return cls(folder / "tokenizer", name_or_path=str(folder), **{name: options[name] for name in kept if name in options})


transformers.AutoConfig.register("cortado", CortadoConfig)
transformers.AutoModelForCausalLM.register(CortadoConfig, CortadoForCausalLM)
transformers.AutoTokenizer.register(CortadoConfig, tokenizer_class=CortadoTokenizer)
