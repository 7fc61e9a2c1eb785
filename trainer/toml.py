"""A strict subset of TOML for configs: `key = value` lines and [sections].

Python 3.10 has no TOML reader, and no version has a writer. Supported: text in double quotes (or
single ones, for Windows paths), numbers, true, false, lists of these over any number of lines, and
comments. Any TOML reader understands what `dumps` writes.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from s4s_core.errors import ConfigError

_KEY = re.compile(r"([A-Za-z0-9_-]+)\s*=\s*(.*)")
_SECTION = re.compile(r"\[([A-Za-z0-9_-]+)\]")
_LITERAL = re.compile(r"'([^'\x00-\x08\x0a-\x1f\x7f]*)'")


Lines = Iterator[tuple[int, str]]
"""Numbered lines that are still to be read."""


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _is_empty(text: str) -> bool:
    """Return whether there is nothing but space and a comment."""
    return not text.strip() or text.strip().startswith("#")


def _value(text: str) -> tuple[Any, str]:
    """Return the value at the start of `text` and the rest; raise ValueError if there is none."""
    literal = _LITERAL.match(text)
    if literal:
        return literal[1], text[literal.end() :]
    value, end = _DECODER.raw_decode(text)
    return value, text[end:]


def _list(text: str, lines: Lines) -> tuple[list[Any], str]:
    """Return the items of a list and the rest; `text` starts after the opening bracket.

    Reads more lines until the list ends; raises ValueError if it is malformed.
    """
    items: list[Any] = []
    comma = True
    while True:
        text = text.strip()
        if _is_empty(text):
            following = next(lines, None)
            if following is None:
                raise ValueError("the list has no end")
            text = following[1]
        elif text[0] == "]":
            return items, text[1:]
        elif comma:
            item, text = _value(text)
            items.append(item)
            comma = False
        elif text[0] == ",":
            text, comma = text[1:], True
        else:
            raise ValueError("a comma is missing")


def _is_plain(value: object) -> bool:
    """Return whether TOML, as far as supported, has such a value."""
    if isinstance(value, list):
        return all(not isinstance(item, list) and _is_plain(item) for item in value)
    return isinstance(value, str | bool | int | float)


def loads(text: str) -> dict[str, Any]:
    """Parse a text into {key: value, section: {key: value}}; ConfigError names the bad line."""
    values: dict[str, Any] = {}
    section = values
    lines = iter(enumerate(text.lstrip("\ufeff").split("\n"), 1))
    for number, line in lines:
        if _is_empty(line):
            continue
        header = _SECTION.match(line.strip())
        if header and _is_empty(line.strip()[header.end() :]):
            section, name, target = {}, header[1], values
            value: Any = section
        else:
            name, value = _assignment(number, line.strip(), lines)
            target = section
        if name in target:
            raise ConfigError(f"Line {number} of the config repeats '{name}'.")
        target[name] = value
    return values


def _assignment(number: int, line: str, lines: Lines) -> tuple[str, Any]:
    """Parse key = value; a list may take more lines."""
    match = _KEY.fullmatch(line)
    if match is None:
        raise ConfigError(f"Line {number} of the config must be key = value.")
    key, text = match[1], match[2]
    try:
        value, rest = _list(text[1:], lines) if text.startswith("[") else _value(text)
        if not _is_empty(rest):
            raise ValueError("there is more than one value")
    except ValueError:
        raise ConfigError(
            f"Line {number} of the config: invalid value of '{key}'. Quote text, and write "
            "numbers, true, false and lists plainly."
        ) from None
    if not _is_plain(value):
        raise ConfigError(f"Line {number} of the config: '{key}' cannot have this value.")
    return key, value


def _written(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.replace("\x7f", "\\u007f")


def dumps(values: Mapping[str, Any]) -> str:
    """Write a mapping as TOML; mappings in it become sections after the plain values."""
    lines = [f"{k} = {_lines(v)}" for k, v in values.items() if not isinstance(v, dict)]
    for name, section in values.items():
        if isinstance(section, dict):
            lines += ["", f"[{name}]", *(f"{k} = {_lines(v)}" for k, v in section.items())]
    return "\n".join(lines) + "\n"


def _lines(value: object) -> str:
    """Write a value; a list of texts gets a line for each."""
    if isinstance(value, list | tuple):
        items = [_written(item) for item in value]
        if any(isinstance(item, str) for item in value):
            return "[\n" + "".join(f"    {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    return _written(value)
