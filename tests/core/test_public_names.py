"""The names that `s4s_core` exports: lazily at run time, and to type checkers."""

import ast
from pathlib import Path

import s4s_core


def test_type_checkers_see_every_lazy_name():
    tree = ast.parse(Path(s4s_core.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    shown = {alias.asname: node.module for node in block.body for alias in node.names}
    assert shown == s4s_core._MODULES and set(s4s_core.__all__) == set(shown)


def test_every_lazy_name_can_be_loaded():
    for name in s4s_core.__all__:
        assert getattr(s4s_core, name).__name__ == name and name in dir(s4s_core)
