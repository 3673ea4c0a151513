"""Models of the program in Hugging Face transformers: `import cortado.transformers` makes the Auto classes know them.

    model = AutoModelForCausalLM.from_pretrained("runs/linear")     a run's folder, or what save_pretrained wrote
    tokenizer = AutoTokenizer.from_pretrained("runs/linear")
    model.generate(**tokenizer("Once", return_tensors="pt"))        its cache is the model's state: of one size

Padding on either side is removed before the model computes, so that it changes nothing."""

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
from cortado._packing import Packing, packing_of
from cortado._parts import checked
from cortado._tokenizer import CortadoTokenizer, FastIfPossible

_TOLD = ("cortado", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "final_logit_softcapping")
_OURS = ("model_type", "architectures", "transformers")  # keys of config.json that the program does not have


class CortadoConfig(transformers.PreTrainedConfig):
    """Config of a model of the program.

    Its config.json is the program's own, with "model_type" and, under "transformers", the settings of transformers.

    Attributes:
        cortado: Object of the program's config.json, with a vocabulary. The other sizes follow from it.

    Raises:
        ValueError: The object is wrong, or another attribute contradicts it.
    """

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
            told = {"vocab_size": self.cortado["vocabulary"], "hidden_size": self.cortado["dim"],
                    "num_hidden_layers": models.layer_count(self.cortado), "num_attention_heads": self.cortado["heads"],
                    "final_logit_softcapping": self.cortado.get("final_softcap") or None}  # fmt: skip
            for name, value in told.items():
                if getattr(self, name) not in (None, value):
                    raise ValueError(f"[config] {name} is {value}, as the program's config says, not {getattr(self, name)}")
                setattr(self, name, value)
        super().__post_init__(**others)

    @classmethod
    def from_dict(cls, config_dict: dict[str, typing.Any], **arguments: typing.Any) -> typing.Any:
        for name in _TOLD:
            if arguments.get(name) is not None:
                raise ValueError(f"[config] {name} is what the program's config says: another one is another model")
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
    """State of a model after the tokens that it has read: one row per sequence, of constant size for linear-time models.

    Args:
        state: The model's state. None: nothing was read.
        length: Tokens that were read.
    """

    def __init__(self, state: ModelState | None = None, length: int = 0) -> None:
        super().__init__(layers=[])
        self.state, self.length = state, length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the number of tokens that were read."""
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Returns -1: a state has no largest number of tokens."""
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Returns the tokens that a mask covers, those that were read and the new ones, and 0."""
        return self.length + query_length, 0

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Returns whether tokens were read."""
        return self.state is not None

    @property
    def is_initialized(self) -> bool:
        """Whether tokens were read."""
        return self.state is not None

    @property
    def is_croppable(self) -> bool:
        """False: see crop()."""
        return False

    @property
    def batch_size(self) -> int:
        """Number of sequences; -1 before the first token."""
        return next((len(t) for part in self.state or [] for t in part.values()), -1)

    def bytes(self) -> int:
        """Returns the bytes of the state."""
        return sum(t.numel() * t.element_size() for part in self.state or [] for t in part.values())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps these rows, in this order."""
        if self.state is not None:
            self.state = [{name: t.index_select(0, indices.to(t.device)) for name, t in part.items()} for part in self.state]

    reorder_cache = batch_select_indices

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each row."""
        if self.state is not None:
            self.state = [{name: t.repeat_interleave(repeats, 0) for name, t in part.items()} for part in self.state]

    def reset(self) -> None:
        """Forgets all tokens."""
        self.state, self.length = None, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Raises ValueError, except for 0 tokens: a state cannot forget its last tokens."""
        if tokens_to_remove == 0:
            return
        raise ValueError("[cache] a state of one size cannot forget its last tokens: keep a copy of it from before them")

    def _no_keys(self, *_: typing.Any, **__: typing.Any) -> typing.Any:
        """Raises ValueError: the model updates its state itself."""
        raise ValueError("[cache] the cache of a cortado model is its state, which has no keys and values of transformers' form")

    update = update_conv_state = update_recurrent_state = get_conv_state = get_recurrent_state = early_initialization = _no_keys
    offload = prefetch = activate_past_recording = _no_keys

    @property
    def is_compileable(self) -> bool:
        return False


class CortadoBackbone(models.LanguageModel):
    """A model of the program without its head, called as such models of transformers are."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None,
                past_key_values: CortadoCache | None = None, use_cache: bool | None = None,
                position_ids: torch.Tensor | None = None, seq_idx: torch.Tensor | None = None,
                cu_seq_lens_q: torch.Tensor | None = None, cu_seq_lens_k: torch.Tensor | None = None,
                **others: typing.Any) -> BaseModelOutputWithPast:  # fmt: skip
        refuse(others)
        cache = past_key_values if past_key_values is not None else CortadoCache() if use_cache else None
        packing = self.packing_of(input_ids, attention_mask, cache, position_ids=position_ids, seq_idx=seq_idx,
                                  cu_seq_lens_q=cu_seq_lens_q, cu_seq_lens_k=cu_seq_lens_k)  # fmt: skip
        hidden = self.read(input_ids, packing, cache)
        return BaseModelOutputWithPast(last_hidden_state=self.normalized(hidden), past_key_values=cache)

    def packing_of(self, tokens: torch.Tensor, attention_mask: torch.Tensor | None, cache: CortadoCache | None,
                   **documents: torch.Tensor | None) -> Packing | None:  # fmt: skip
        """Returns the batch's tokens without padding, as packed sequences; None where nothing is to be removed."""
        if cache is not None and not isinstance(cache, CortadoCache):
            raise TypeError(f"[model] past_key_values must be a CortadoCache, the model's state, got {type(cache).__name__}")
        return packing_of(tokens, attention_mask, cache.length if cache is not None else 0, **documents)

    def read(self, tokens: torch.Tensor, packing: Packing | None, cache: CortadoCache | None) -> torch.Tensor:
        """Returns hidden() of the tokens, which follow those of the cache, and updates the cache."""
        state = cache.state if cache is not None else None
        one_a_row = packing is None or packing.one_a_row
        if not one_a_row and state is not None:
            raise ValueError("[model] a document begins behind the first token of a call that goes on from a cache")
        if cache is not None and state is None:
            state = self.state(tokens.shape[0] if one_a_row or packing is None else packing.bounds.shape[0] - 1)
        if packing is None:
            x, after = self.hidden(tokens, state)
        else:
            packed, after = self.hidden(packing.pack(tokens), state, packing.bounds)
            x = packing.unpack(packed)
        if cache is not None:
            cache.state, cache.length = after, cache.length + tokens.shape[1]
            if packing is not None and not one_a_row:  # each row continues from its last document
                cache.batch_select_indices(packing.last)
        return x


def refuse(options: dict[str, typing.Any]) -> None:
    """Raises for options of other models and for unknown ones, which would otherwise be ignored silently."""
    for name, value in options.items():
        known = name in ("inputs_embeds", "output_hidden_states", "output_attentions", "output_router_logits")
        if value is None or (known and value is False) or name in ("max_length_q", "max_length_k"):  # implied by the bounds
            continue
        if known:
            raise ValueError(f"[model] {name} is not known to cortado models")
        raise TypeError(f"[model] forward() has no argument {name!r}")


def targets_of(labels: torch.Tensor, tokens: torch.Tensor, packing: Packing | None) -> torch.Tensor:
    """Returns for every token the label of the next one."""
    if labels.shape != tokens.shape:
        raise ValueError(f"[model] expected labels of shape {list(tokens.shape)}, as the tokens', got {list(labels.shape)}")
    if packing is not None:
        return packing.targets(labels)
    return torch.cat([labels[:, 1:], labels.new_full((labels.shape[0], 1), -100)], 1)


class CortadoForCausalLM(transformers.PreTrainedModel, transformers.GenerationMixin):
    """A language model of the program as a model of transformers, with its generate(), Trainer and pipelines.

    Args:
        config: Config with `cortado`, the program's own.

    Raises:
        ValueError: The config has no `cortado`.

    Example:
        >>> import cortado.transformers
        >>> model = transformers.AutoModelForCausalLM.from_pretrained("runs/linear")
    """

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
        """Does nothing: the weights were drawn when the model was made."""

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: torch.nn.Module) -> None:
        raise ValueError("[model] the vocabulary's size is the config's: make another model")

    def get_output_embeddings(self) -> torch.nn.Module | None:
        """Returns the head; for a tied model the embedding, whose weight the head uses."""
        if "head" in self.model._modules:
            return self.model.head
        embedding = self.model._modules["embedding"]
        if "head_bias" in self.model._parameters:  # visible there without being its parameter
            embedding.__dict__["bias"] = self.model.head_bias
        return embedding

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None,
                past_key_values: CortadoCache | None = None, labels: torch.Tensor | None = None,
                use_cache: bool | None = None, logits_to_keep: int | torch.Tensor = 0, return_dict: bool | None = None,
                num_items_in_batch: int | torch.Tensor | None = None, position_ids: torch.Tensor | None = None,
                seq_idx: torch.Tensor | None = None, cu_seq_lens_q: torch.Tensor | None = None,
                cu_seq_lens_k: torch.Tensor | None = None,
                **others: typing.Any) -> CausalLMOutputWithPast | tuple[typing.Any, ...]:  # fmt: skip
        """Computes logits, and with labels the loss.

        Packed documents are told apart by position_ids, seq_idx or cu_seq_lens_q, as DataCollatorWithFlattening and TRL give
        them. Each is read as if it were alone, and no token is asked for the next document's first.

        Args:
            input_ids: int64 [B, T].
            attention_mask: [B, T] or [B, tokens before + T]: 0 for padding, which changes nothing wherever it stands.
            past_key_values: State of the tokens before, a CortadoCache.
            labels: Shaped as input_ids. The loss is the mean over the next tokens. Labels below 0 are not counted.
            use_cache: Whether a state is returned. None: as the config says, and not in training.
            logits_to_keep: The last so many tokens have logits, or those with these indices; 0: all.
            return_dict: False: a tuple.
            num_items_in_batch: Divides the sum of the losses instead of the number of labels, for steps of several batches
                (the Trainer's gradient accumulation).
            position_ids: [B, T], of packed documents: they begin anew at 0.
            seq_idx: [B, T], of packed documents: their numbers.
            cu_seq_lens_q: [N + 1], of packed documents: their bounds.
            cu_seq_lens_k: As cu_seq_lens_q.
            **others: Arguments of other models, at their neutral values.

        Returns:
            Loss, logits [B, T, vocabulary] and state, as far as they were asked for.

        Raises:
            TypeError: There is no such argument, or past_key_values is another cache.
            ValueError: The model does not know what is asked for (output_attentions), or shapes do not fit.
        """
        refuse({**others, **{name: getattr(self.config, name, None) for name in ("output_hidden_states", "output_attentions")
                             if others.get(name) is None}})  # fmt: skip
        use_cache = use_cache if use_cache is not None else self.config.use_cache and not self.training
        cache = past_key_values if past_key_values is not None else CortadoCache() if use_cache else None
        packing = self.model.packing_of(input_ids, attention_mask, cache, position_ids=position_ids, seq_idx=seq_idx,
                                        cu_seq_lens_q=cu_seq_lens_q, cu_seq_lens_k=cu_seq_lens_k)  # fmt: skip
        hidden = self.model.read(input_ids, packing, cache)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        loss, logits = None, None
        if labels is not None:
            targets = targets_of(labels, input_ids, packing)
            if self.model.calls_head:  # calls it only once
                logits = self.model.logits(hidden)
                loss = models.loss_of_logits(logits, targets)
                logits = logits[:, kept]
            else:
                loss = self.model.loss_of(hidden, targets)
            if num_items_in_batch is not None:
                loss = loss * (targets >= 0).sum() / num_items_in_batch
        if logits is None:
            logits = self.model.logits(hidden[:, kept])
        if not (self.config.return_dict if return_dict is None else return_dict):
            return tuple(part for part in (loss, logits, cache) if part is not None)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)

    def _prepare_cache_for_generation(self, generation_config: typing.Any, model_kwargs: dict[str, typing.Any],
                                      *others: typing.Any, **more: typing.Any) -> None:
        if generation_config.cache_implementation is not None:
            raise ValueError(f"[generate] cache_implementation={generation_config.cache_implementation!r}: the cache of a "
                             "cortado model is its state, there is no other")
        if generation_config.use_cache and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = CortadoCache()

    def _prepare_position_ids_for_generation(self, *_: typing.Any) -> None:
        """Adds none: the state counts positions, and those of transformers are wrong after padding on the right."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: typing.Any, *arguments: typing.Any, **options: typing.Any) -> typing.Any:
        """Opens what save_pretrained wrote, or a run's folder (config.json with best.safetensors or last.safetensors).

        Args:
            pretrained_model_name_or_path: The folder.
            *arguments: As in transformers.
            **options: As in transformers, and `memory`, as in cortado.load, for either kind of folder.

        Returns:
            The model, in evaluation mode.

        Raises:
            TypeError: There is no such option.
            ValueError: An option is not for models of the program (quantization_config), or `memory` is wrong.
        """
        if options.get("quantization_config") is not None:
            raise ValueError("[model] quantization_config is not known to cortado models: the program has weights of 8 and 4 bits "
                             "(cortado generate --weights int8)")  # fmt: skip
        folder = pathlib.Path(str(pretrained_model_name_or_path))
        own = any((folder / name).is_file() for name in ("best.safetensors", "last.safetensors"))
        saved = any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json"))
        if options.get("memory") is not None and not (own or saved):
            raise ValueError(f"[model] memory= is for a folder with a config.json and weights, which {folder} is not")
        if (own and not saved) or options.get("memory") is not None:
            return cls._from_folder(folder, options)
        options.pop("memory", None)
        return super().from_pretrained(pretrained_model_name_or_path, *arguments, **options)

    @classmethod
    def _from_folder(cls, folder: pathlib.Path, options: dict[str, typing.Any]) -> typing.Any:
        dtype = options.get("dtype") or options.get("torch_dtype")
        if isinstance(dtype, str):
            dtype = torch.float32 if dtype == "auto" else getattr(torch, dtype)
        loaded = CortadoBackbone.open(folder, dtype=dtype or torch.float32, memory=options.get("memory"))
        config = options.get("config") or CortadoConfig.from_pretrained(folder)
        for name, value in unknown(options).items():
            if not hasattr(config, name) or name in _TOLD:
                raise TypeError(f"[model] from_pretrained has no argument {name!r}")
            setattr(config, name, value)
        config.dtype, config.name_or_path = dtype or torch.float32, str(folder)
        config.cortado = loaded.config
        with torch.device("meta"):
            model = cls(config)
        model.model = loaded
        if (folder / "generation_config.json").is_file():
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
        else:
            stops = loaded.tokenizer.stops if loaded.tokenizer else []
            model.generation_config = transformers.GenerationConfig(eos_token_id=stops or None)
        return model.to(_device(options.get("device_map"))).eval()

    def save_pretrained(self, save_directory: str | os.PathLike[str], *arguments: typing.Any, **options: typing.Any) -> None:
        """Writes a folder as transformers does. The program opens it as well (`cortado generate FOLDER`)."""
        super().save_pretrained(save_directory, *arguments, **options)
        if self.model.tokenizer:
            self.model.tokenizer.save(pathlib.Path(save_directory) / "tokenizer")


def unknown(options: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """Returns the options of from_pretrained that are settings of the config, or unknown."""
    read = {"config", "dtype", "torch_dtype", "memory", "device_map"}
    # Options about where files come from and how they are read; they have no effect here.
    of_files = {"_from_auto", "_commit_hash", "adapter_kwargs", "cache_dir", "code_revision", "force_download", "local_files_only",
                "low_cpu_mem_usage", "proxies", "revision", "token", "trust_remote_code", "use_safetensors", "weights_only"}  # fmt: skip
    neutral = {"attn_implementation": "eager", "subfolder": "", "ignore_mismatched_sizes": False, "output_loading_info": False}
    return {name: value for name, value in options.items()
            if name not in read | of_files and value is not None and (name not in neutral or value != neutral[name])}  # fmt: skip


def _device(place: typing.Any) -> torch.device:
    """Returns the device of a device_map, which must put the whole model on one device."""
    if isinstance(place, dict):
        if set(place) != {""}:
            raise ValueError(f"[model] device_map {place}: a cortado model is on one device, as {{'': 'cpu'}}")
        place = place[""]
    if place == "auto":
        place = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(place or "cpu")


transformers.AutoConfig.register("cortado", CortadoConfig)
transformers.AutoModelForCausalLM.register(CortadoConfig, CortadoForCausalLM)
transformers.AutoTokenizer.register(CortadoConfig, tokenizer_class=FastIfPossible, slow_tokenizer_class=CortadoTokenizer)
