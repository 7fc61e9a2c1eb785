"""A writer of TOML for configs, which Python lacks: text, numbers, true, false, lists, sections."""

import json
from collections.abc import Mapping
from typing import Any


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
