"""TOML for configs: key = value lines and [sections], read strictly and written the same way.

Python 3.10 has no reader, and none writes. What is understood: text in double quotes (or single
ones, for Windows paths), whole numbers, fractions, true, false, lists of these over any number of
lines, comments. Everything that is written here, any TOML reader understands.
"""

import json
import re

from s4s_core.errors import ConfigError

_KEY = re.compile(r"([A-Za-z0-9_-]+)\s*=\s*(.*)")
_SECTION = re.compile(r"\[([A-Za-z0-9_-]+)\]")
_LITERAL = re.compile(r"'([^'\x00-\x08\x0a-\x1f\x7f]*)'")


def _no_constant(text):
    raise ValueError(f"{text} is no number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _is_rest(text):
    """Is what stands behind a value nothing but a comment?"""
    return not text.strip() or text.strip().startswith("#")


def _value(text):
    """(the value at the start of `text`, what stands behind it); ValueError if there is none."""
    literal = _LITERAL.match(text)
    if literal:
        return literal[1], text[literal.end() :]
    value, end = _DECODER.raw_decode(text)
    return value, text[end:]


def _list(text, lines):
    """(the items of a list, what stands behind it); `text` begins behind its bracket.

    `lines` are read on until the list ends; ValueError where it does not, or is none.
    """
    items, comma = [], True
    while True:
        text = text.strip()
        if _is_rest(text):
            text = next(lines, (0, None))[1]
            if text is None:
                raise ValueError("the list has no end")
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


def _plain(value):
    """Is a value one that TOML has?"""
    if isinstance(value, list):
        return all(not isinstance(item, list) and _plain(item) for item in value)
    return isinstance(value, str | bool | int | float)


def loads(text):
    """{key: value, section: {key: value}} of a text; ConfigError names the line at fault."""
    found = here = {}
    lines = iter(enumerate(text.lstrip("\ufeff").split("\n"), 1))
    for number, line in lines:
        if _is_rest(line):
            continue
        section = _SECTION.match(line.strip())
        if section and _is_rest(line.strip()[section.end() :]):
            here, name = {}, section[1]
            place = found
        else:
            name, value = _assignment(number, line.strip(), lines)
            place = here
        if name in place:
            raise ConfigError(f"Line {number} of the config says '{name}' twice.")
        place[name] = here if section else value
    return found


def _assignment(number, line, lines):
    """(key, value) of a line; a list may take more lines."""
    match = _KEY.fullmatch(line)
    if match is None:
        raise ConfigError(f"Line {number} of the config is not understood: write key = value.")
    text = match[2]
    try:
        value, rest = _list(text[1:], lines) if text.startswith("[") else _value(text)
        if not _is_rest(rest):
            raise ValueError("there is more than one value")
    except ValueError:
        raise ConfigError(
            f"Line {number} of the config: the value of '{match[1]}' is not understood; write "
            'text as "text", and numbers, true, false and lists plainly.'
        ) from None
    if not _plain(value):
        raise ConfigError(f"Line {number} of the config: '{match[1]}' cannot hold that.")
    return match[1], value


def _written(value):
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.replace("\x7f", "\\u007f")


def dumps(values):
    """The text of a mapping; mappings inside it become sections, behind the plain values."""
    lines = [f"{k} = {_lines(v)}" for k, v in values.items() if not isinstance(v, dict)]
    for name, section in values.items():
        if isinstance(section, dict):
            lines += ["", f"[{name}]", *(f"{k} = {_lines(v)}" for k, v in section.items())]
    return "\n".join(lines) + "\n"


def _lines(value):
    """A value; a list of texts gets a line for each of them."""
    if isinstance(value, list | tuple):
        items = [_written(item) for item in value]
        if any(isinstance(item, str) for item in value):
            return "[\n" + "".join(f"    {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    return _written(value)
