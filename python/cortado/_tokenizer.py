"""The program's tokenizers for Hugging Face transformers (cortado.transformers)."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import typing

import transformers

from cortado import models

_FILE = "tokenizer_config.json"  # transformers' own file, beside the program's folder
_ROLES = tuple(transformers.PreTrainedTokenizer.SPECIAL_TOKENS_ATTRIBUTES)
_OTHERS = ("padding_side", "truncation_side", "model_max_length", "chat_template", "extra_special_tokens")
# Options of from_pretrained about where files come from; they have no effect on a local folder.
_OF_FILES = {"_from_auto", "_commit_hash", "revision", "token", "cache_dir", "force_download", "local_files_only", "proxies",
             "use_fast", "trust_remote_code", "name_or_path"}  # fmt: skip
_NO_LENGTH = 10**29  # above this, transformers means "no limit"


class CortadoTokenizer(transformers.PreTrainedTokenizer):
    """Tokenizer of a run (RUN/tokenizer), of any kind, with its special tokens.

    A text is read as a whole, as the program reads it. The vocabulary is the model's: any of its tokens may pad, begin or end
    texts, and none can be added. The padding token is the tokenizer's own, or the token that ends texts, or token 0: the
    attention mask leaves it out.

    Args:
        folder: The run's folder tokenizer/.
        **options: As in transformers: special tokens, sides, chat_template.

    Raises:
        ValueError: A special token is not in the vocabulary.

    Example:
        >>> tokenizer = transformers.AutoTokenizer.from_pretrained("runs/linear")
    """

    vocab_files_names: typing.ClassVar[dict[str, str]] = {}
    model_input_names: typing.ClassVar[list[str]] = ["input_ids", "attention_mask"]

    def __init__(self, folder: str | os.PathLike[str], **options: typing.Any) -> None:
        self.own = models.Tokenizer(folder)
        self._pieces = self._name_all()
        self._ids = {piece: number for number, piece in enumerate(self._pieces)}
        for role, number in self.own.special.items():
            if role != "pad" and (role != "eos" or number is not None):
                options.setdefault(role + "_token", None if number is None else self._pieces[number])
        stops, pad = self.own.stops, self.own.special["pad"]
        options.setdefault("eos_token", self._pieces[stops[0]] if stops else None)
        options.setdefault("pad_token", options["eos_token"] or self._pieces[0] if pad is None else self._pieces[pad])
        options.setdefault("chat_template", self.own.chat_template)
        options.pop("tokenizer_file", None)
        super().__init__(**options)

    def _name_all(self) -> list[str]:
        """Returns the tokens' texts. A text that is not unique, or no whole character, gets the token's number."""
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

    def __setattr__(self, name: str, value: typing.Any) -> None:
        if name in _ROLES and value is not None:
            self._known(str(value))
        super().__setattr__(name, value)

    def _known(self, token: str) -> int:
        if token not in self._ids:
            raise ValueError(f"[tokenizer] there is no token {token!r}: the vocabulary is the model's, none can be added to it")
        return self._ids[token]

    def _add_tokens(self, new_tokens: list[typing.Any], special_tokens: bool = False) -> int:
        """Returns 0, because no token is new. Tokens without a role must be encoded as one token already."""
        roles = {str(token) for token in self._special_tokens_map.values() if token is not None}
        for token in map(str, new_tokens or []):
            number = self._known(token)
            if token not in roles and self.own.encode(token) != [number]:
                raise ValueError(f"[tokenizer] {token!r} is token {number}, but in a text it is not read as one, which cannot be changed")
        return 0

    def tokenize(self, text: str, pair: str | None = None, add_special_tokens: bool = False, **options: typing.Any) -> list[str]:
        if options.pop("split_special_tokens", self.split_special_tokens):
            raise ValueError("[tokenizer] split_special_tokens: special tokens of cortado's tokenizers are always read as such")
        for name, value in options.items():
            if value is not None and value is not False:
                raise TypeError(f"[tokenizer] a tokenizer has no argument {name!r}")
        tokens = [*self.own.encode(text), *(self.own.encode(pair) if pair else ())]
        return [self._pieces[token] for token in (self.build_inputs_with_special_tokens(tokens) if add_special_tokens else tokens)]

    def _convert_token_to_id(self, token: str) -> int | None:
        return self._ids.get(token, self.own.special["unk"])

    def _convert_id_to_token(self, index: int) -> str:
        return self._pieces[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return self.own.decode([self._ids[token] for token in tokens])

    def _decode(self, token_ids: int | list[int], skip_special_tokens: bool = False,
                clean_up_tokenization_spaces: bool | None = None, **options: typing.Any) -> str:  # fmt: skip
        """Returns the text as the program writes it. Ignores clean_up_tokenization_spaces, which pipelines set for every
        tokenizer."""
        known = ("use_source_tokenizer", "spaces_between_special_tokens")  # options of other tokenizers, accepted at their neutral value
        for name, value in options.items():
            if value is not None and not (name in known and value is False):
                raise TypeError(f"[tokenizer] decode has no argument {name!r}")
        return self.own.decode([token_ids] if isinstance(token_ids, int) else list(token_ids), skip_special_tokens)

    def build_inputs_with_special_tokens(self, token_ids_0: list[int], token_ids_1: list[int] | None = None) -> list[int]:
        return [*self.own.prefix, *token_ids_0, *(token_ids_1 or [])]

    def as_fast(self) -> transformers.PreTrainedTokenizerFast | None:
        """Returns this tokenizer as transformers' own, which is faster and knows each token's place in the text.

        It has the special tokens, sides and chat template of this one.

        Returns:
            The tokenizer; None if it is not a byte-pair encoding, or one that tokenizer.json cannot express.
        """
        with tempfile.TemporaryDirectory() as folder:
            try:
                if not self.own.export(folder):
                    return None
            except ValueError:
                return None
            roles = {role: str(token) for role, token in self._special_tokens_map.items() if token is not None}
            others = {name: getattr(self, name) for name in _OTHERS}
            return transformers.PreTrainedTokenizerFast.from_pretrained(folder, **roles, **others, name_or_path=self.name_or_path)

    def save_pretrained(self, save_directory: str | os.PathLike[str], legacy_format: bool | None = None,
                        filename_prefix: str | None = None, push_to_hub: bool = False,
                        **options: typing.Any) -> tuple[str, ...]:  # fmt: skip
        """Writes the program's tokenizer folder, and a file with the settings for transformers."""
        for name, value in {"legacy_format": legacy_format, "filename_prefix": filename_prefix, "push_to_hub": push_to_hub, **options}.items():
            if value and name != "save_jinja_files":
                raise ValueError(f"[tokenizer] save_pretrained does not know {name}={value!r}")
        folder = pathlib.Path(save_directory)
        self.own.save(folder / "tokenizer")
        kept: dict[str, typing.Any] = {"tokenizer_class": type(self).__name__}
        kept |= {role: token if token is None else str(token) for role, token in self._special_tokens_map.items()}
        kept |= {name: getattr(self, name) for name in _OTHERS}
        if self.model_max_length > _NO_LENGTH:
            del kept["model_max_length"]
        (folder / _FILE).write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
        return str(folder / "tokenizer"), str(folder / _FILE)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: typing.Any, *arguments: typing.Any, **options: typing.Any) -> typing.Any:
        folder = pathlib.Path(str(pretrained_model_name_or_path))
        if not (folder / "tokenizer").is_dir():
            raise OSError(f"[tokenizer] {folder} has no tokenizer folder")
        known = {*_ROLES, *_OTHERS}
        for name, value in options.items():
            if name not in known | _OF_FILES and value is not None:
                raise TypeError(f"[tokenizer] from_pretrained has no argument {name!r}")
        saved = json.loads((folder / _FILE).read_text()) if (folder / _FILE).is_file() else {}
        kept = {name: value for name, value in {**saved, **options}.items() if name in known}
        return cls(folder / "tokenizer", name_or_path=str(folder), **kept)


class FastIfPossible:
    """What AutoTokenizer opens a run's folder with: transformers' own tokenizer, or CortadoTokenizer."""

    @classmethod
    def from_pretrained(cls, *arguments: typing.Any, **options: typing.Any) -> transformers.PreTrainedTokenizerBase:
        own: CortadoTokenizer = CortadoTokenizer.from_pretrained(*arguments, **options)
        return own.as_fast() or own
