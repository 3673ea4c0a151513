"""Documentation and types of mechanisms' settings. Without torch: scripts/settings.py writes nn.pyi by it."""

from __future__ import annotations

import json
import pathlib
import re
import textwrap
import typing

Facts = dict[str, typing.Any]
FILE = pathlib.Path(__file__).resolve().parent / "settings.json"
SIZES = {"dim": 64, "heads": 4}  # of the layer for which documentation gives defaults that depend on the sizes
COMMON = {
    "dim": "Width D of the input and of the output.",
    "heads": "Heads per layer. A mechanism without heads ignores it.",
    "layer": "Number of this layer in its model, from 0. Some initialisations depend on it.",
    "layers": "Layers of that model.",
    "causal": "False: the bidirectional form of mechanisms that have one. It has no state.",
    "device": "Device of the weights.",
    "dtype": "Type of the weights.",
}
_NAMES = {"an integer": "int", "a number": "float", "a finite number": "float", "true or false": "bool", "a text": "str",
          "an object": "dict[str, Any]"}  # fmt: skip
_COLUMNS = 110


def types_of(setting: Facts) -> list[str]:
    """The names of the types that a setting takes: ["int", "None"]."""
    if setting.get("type"):
        return [name.strip() for name in setting["type"].split("|")]
    if setting["words"]:
        names = [f"Literal[{', '.join(json.dumps(word) for word in setting['words'])}]"]
    else:
        names = [next(name for phrase, name in _NAMES.items() if setting["expected"].startswith(phrase))]
    return [*names, "None"] if setting["default"] is None or setting["by_sizes"] else names


def expected(setting: Facts) -> str:
    """What a setting may be, for people: "int from 1 to 2^20"."""
    if setting["words"]:
        words = [json.dumps(word) for word in setting["words"]]
        return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    text: str = setting["expected"].removesuffix(" { ... }").removesuffix(", or null")
    for phrase, name in _NAMES.items():
        text = re.sub(f"^{phrase}\\b", name.partition("[")[0], text)
    text = re.sub(r"(?<![\d.])\d{7,}", lambda number: _power(int(number[0])), text)
    if "Sequence[int]" in (setting.get("type") or ""):
        text += ", or a list of them"
    optional = "by_sizes" in setting and not setting["by_sizes"] and "None" in types_of(setting)  # of a mechanism
    return text + (", or None" if optional else "")


def _power(number: int) -> str:
    return f"2^{number.bit_length() - 1}" if number & (number - 1) == 0 else f"{number:g}"


def default(setting: Facts) -> str:
    """The default, for people: "129", or "set by the sizes: 16 for dim=64 and heads=4"."""
    if setting["by_sizes"]:
        return f"set by the sizes: {setting['default']} for dim={SIZES['dim']} and heads={SIZES['heads']}"
    return written_default(setting)


def written_default(setting: Facts) -> str:
    """The default as Python writes it; None where it depends on the sizes."""
    value = None if setting["by_sizes"] else setting["default"]
    return json.dumps(value) if isinstance(value, str) else repr(value)


def docstring(facts: Facts, name: str) -> str:
    """Google-style documentation of a mechanism's class `name`. Settings without a meaning are there all the same."""
    forms = " and ".join(word for word in ("causal", "bidirectional") if facts[word])
    head = [f"{facts['name']}: {facts['family']}. {facts['paper']}.", "", f"    {facts['equation']}", "",
            f"Forms: {forms}. State per layer, in numbers: {facts['state']}.", "", "Args:"]  # fmt: skip
    settings = {setting["name"]: setting for setting in facts["settings"]}
    lines = []
    for key, meaning in COMMON.items():
        lines += _entry(key, settings[key]["meaning"] if key in settings and settings[key].get("meaning") else meaning)
    for key, setting in settings.items():
        if key not in COMMON:
            meaning = f"{setting.get('meaning') or ''} Default: {default(setting)}.".strip()
            lines += _entry(f"{key} ({expected(setting)})", meaning)
    causal = "" if facts["causal"] else ", causal=False"
    return "\n".join([
        *head, *lines, "", "Raises:", "    ValueError: A setting is wrong, or is not this mechanism's.", "", "Example:",
        f"    >>> layer = cortado.nn.{name}({SIZES['dim']}, heads={SIZES['heads']}{causal})",
        f"    >>> y, state = layer(torch.randn(2, 16, {SIZES['dim']}))",
    ])  # fmt: skip


def _entry(head: str, meaning: str) -> list[str]:
    return textwrap.wrap(f"{head}: {meaning}", _COLUMNS, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False)


def meanings() -> dict[str, dict[str, Facts]]:
    """By mechanism and setting: its "meaning", and the types that it takes, where its range does not say them."""
    if not FILE.exists():
        return {}
    return {it["name"]: {setting["name"]: setting for setting in it["settings"]}
            for it in json.loads(FILE.read_text(encoding="utf-8"))["mechanisms"]}  # fmt: skip
