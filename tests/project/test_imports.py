"""Who may import whom (docs/architecture.md, "Who depends on whom"), checked in the sources.

- The mathematics, s4s_core without s4s_core/app, imports torch, numpy, safetensors and itself.
- s4s_core/app imports the mathematics, and comfy only inside functions of app/comfyui.py.
- nodes, s4s_webui and trainer import s4s_core. nodes import it relatively, the others absolutely.
- nodes never import trainer, and nothing imports tools (the command `bench` loads it by name).
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("s4s_core", "nodes", "s4s_webui", "trainer", "scripts")
APP = "s4s_core.app"
CORE_PACKAGES = {"torch", "numpy", "safetensors"}
OPTIONAL_PACKAGES = {"scipy", "lpips"}  # inside functions only
APP_PACKAGES = CORE_PACKAGES | {"PIL"}
COMFYUI_PACKAGES = {"comfy", "folder_paths", "node_helpers", "latent_preview"}

# A module never imports one of a higher rank. Modules without a rank must only avoid cycles.
RANKS = {
    **{"errors": 0, "names": 0, "model": 0, "spaces": 1, "table": 2},
    **{"program": 3, "classical": 3, "schedules": 3, "sampling": 4, "schedules.gits": 5},
    **{"teacher": 5, "objectives": 5, "candidates": 5, "hosting": 5, "training": 6},
}


class Import(NamedTuple):
    """One imported name, absolute within the checkout."""

    name: str
    relative: bool
    top_level: bool


def sources(folder: str) -> dict[str, Path]:
    """Map module names to paths for every Python file in a top-level folder."""
    modules = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def executed(node: ast.AST, top_level: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Yield every node that can run (not TYPE_CHECKING blocks), and whether it runs at import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield child, top_level
        yield from executed(child, top_level and not is_function)


@cache
def imports(module: str, path: Path) -> list[Import]:
    """Return every import of a module."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found = []
    for node, top_level in executed(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, False, top_level) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: max(0, len(package) - node.level + 1)] if node.level else []
            base = [*base, node.module] if node.module else base
            names = (".".join([*base, alias.name]) for alias in node.names)
            found += [Import(name, node.level > 0, top_level) for name in names]
    return found


def packages(folder: str, relative: bool) -> set[str]:
    """Return the top-level packages that a folder imports relatively, or absolutely."""
    modules = sources(folder).items()
    return {i.name.split(".")[0] for m in modules for i in imports(*m) if i.relative == relative}


def core_edges() -> dict[str, set[str]]:
    """Map each module of s4s_core to the modules of s4s_core that it imports."""
    modules = sources("s4s_core")
    edges = {}
    for module, path in modules.items():
        used = {i.name for i in imports(module, path) if i.relative}
        edges[module] = {n if n in modules else n.rpartition(".")[0] for n in used} - {module}
    return edges


def is_app(module: str) -> bool:
    return module == APP or module.startswith(APP + ".")


def rank(module: str) -> int | None:
    """Return the rank of the longest listed prefix, or None."""
    parts = module.split(".")[1:]
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((RANKS[prefix] for prefix in prefixes if prefix in RANKS), None)


@pytest.mark.parametrize("module, path", sources("s4s_core").items())
def test_the_core_imports_only_its_own_packages(module: str, path: Path):
    for name, relative, top_level in imports(module, path):
        if relative:
            assert name.startswith("s4s_core"), f"{module} imports {name} from outside the core"
            continue
        allowed = set(sys.stdlib_module_names) | (APP_PACKAGES if is_app(module) else CORE_PACKAGES)
        if not top_level:
            allowed |= COMFYUI_PACKAGES if module == f"{APP}.comfyui" else OPTIONAL_PACKAGES
        assert name.split(".")[0] in allowed, f"{module} imports {name}"


@pytest.mark.parametrize(
    "folder, relatively, forbidden",
    [
        ("nodes", {"nodes", "s4s_core"}, set(PRODUCT)),
        ("trainer", {"trainer"}, {"nodes", "scripts", "s4s_webui", "trainer", "comfy"}),
        ("s4s_webui", {"s4s_webui"}, {"nodes", "scripts", "s4s_webui"}),
        ("scripts", {"scripts"}, {"nodes", "scripts"}),
    ],
)
def test_front_ends_import_the_core_and_not_each_other(folder, relatively, forbidden):
    """Nodes import the core relatively, the others absolutely."""
    assert packages(folder, relative=True) <= relatively
    assert not forbidden & packages(folder, relative=False)


@pytest.mark.parametrize("folder", PRODUCT)
def test_nothing_imports_tools(folder: str):
    """Only the command `bench` loads tools/bench, by name, and only in a checkout."""
    assert not {"tools", "tests"} & packages(folder, relative=False)
    users = {m for m, path in sources(folder).items() if '"tools' in path.read_text("utf-8")}
    assert users <= {"trainer.commands.bench"}


def test_core_modules_import_only_lower_ranks():
    edges = core_edges()
    for module, used in edges.items():
        for other in used:
            mine, theirs = rank(module), rank(other)
            assert mine is None or theirs is None or theirs <= mine, f"{module} imports {other}"
            assert is_app(module) or not is_app(other), f"{module} imports {other}"
    plain = {
        f"s4s_core.{name}" for name in ("errors", "names", "table", "metadata", "atomic", "regular")
    }
    for module in ("s4s_core.solver_file", "s4s_core.metadata", "s4s_core.atomic"):
        assert edges[module] <= plain, "solver files need no solver code"


def test_the_core_has_no_import_cycle():
    edges, done = core_edges(), set()

    def visit(module: str, trail: list[str]) -> None:
        assert module not in trail, " -> ".join([*trail, module])
        if module not in done:
            for other in edges.get(module, ()):
                visit(other, [*trail, module])
            done.add(module)

    for module in edges:
        visit(module, [])
