"""Imports point one way (docs/architecture.md, "Who depends on whom"), read from the sources."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE_NEEDS = {"torch", "numpy", "safetensors"}
CORE_MAY_USE = {"scipy", "lpips"}  # inside a function, by those who have it

# Lower ranks never import higher ones; what has no rank only has to keep out of cycles.
RANKS = {
    "errors": 0,
    "names": 0,
    "forms": 0,
    "spaces": 1,
    "table": 2,
    "families": 3,
    "classical": 3,
    "schedules": 3,
    "sampling": 4,
    "schedules.gits": 5,
    "teacher": 5,
    "objectives": 5,
    "evaluation": 5,
    "training": 6,
}


def sources(folder):
    """Module name -> path of every Python file in a top-level folder."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name, path):
    """(imported name, is relative, is at module level) of every import, names absolute."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = {id(node) for node in tree.body}
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, False, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            base = package[: max(0, len(package) - node.level + 1)] if node.level else []
            base = [*base, node.module] if node.module else base
            for alias in node.names:
                yield ".".join([*base, alias.name]), node.level > 0, id(node) in top


def roots(folder, relative):
    """First names of what the files of a folder import."""
    files = sources(folder).items()
    return {n.split(".")[0] for f in files for n, rel, _ in imports(*f) if rel == relative}


def core_edges():
    """module -> modules of the core that it imports."""
    files = sources("s4s_core")
    edges = {}
    for name, path in files.items():
        used = {n for n, relative, _ in imports(name, path) if relative}
        edges[name] = {n if n in files else n.rpartition(".")[0] for n in used} - {name}
    return edges


def rank(module):
    """The rank of the longest listed prefix, or None."""
    parts = module.split(".")[1:]
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((RANKS[prefix] for prefix in prefixes if prefix in RANKS), None)


@pytest.mark.parametrize("name, path", sources("s4s_core").items())
def test_the_core_needs_three_packages(name, path):
    for imported, relative, at_top in imports(name, path):
        if relative:
            assert imported.startswith("s4s_core"), f"{name} reaches out of the core"
        else:
            allowed = CORE_NEEDS if at_top else CORE_NEEDS | CORE_MAY_USE
            root = imported.split(".")[0]
            assert root in allowed | sys.stdlib_module_names, f"{name} imports {imported}"


def test_nodes_import_relatively_and_never_the_trainer():
    assert roots("nodes", relative=True) <= {"nodes", "s4s_core"}
    assert not {"nodes", "s4s_core", "trainer", "scripts"} & roots("nodes", relative=False)


def test_trainer_and_scripts_import_the_core_absolutely():
    assert roots("trainer", relative=True) <= {"trainer"}
    assert not {"nodes", "scripts", "trainer", "comfy"} & roots("trainer", relative=False)
    assert roots("scripts", relative=True) == set()
    assert not {"nodes", "scripts"} & roots("scripts", relative=False)
    assert roots("s4s_webui", relative=True) == {"s4s_webui"}
    assert not {"nodes", "scripts", "s4s_webui"} & roots("s4s_webui", relative=False)


@pytest.mark.parametrize("folder", ["s4s_core", "trainer", "nodes", "s4s_webui", "scripts"])
def test_the_product_imports_no_tools(folder):
    """Only the command `bench` loads tools/bench, by name, and only in a checkout."""
    assert "tools" not in roots(folder, relative=False)
    users = {n for n, path in sources(folder).items() if '"tools' in path.read_text("utf-8")}
    assert users <= {"trainer.commands.bench"}


def test_the_core_imports_downwards():
    for module, used in core_edges().items():
        for other in used:
            if None not in (rank(module), rank(other)):
                assert rank(other) <= rank(module), f"{module} imports {other}"


def test_the_core_has_no_import_cycle():
    edges, done = core_edges(), set()

    def visit(module, trail):
        assert module not in trail, " -> ".join([*trail, module])
        if module not in done:
            for other in edges.get(module, ()):
                visit(other, [*trail, module])
            done.add(module)

    for module in edges:
        visit(module, [])


def test_solver_files_need_no_engine():
    allowed = {f"s4s_core.{name}" for name in ("errors", "forms", "table", "metadata", "atomic")}
    edges = core_edges()
    for module in ("s4s_core.solver_file", "s4s_core.metadata", "s4s_core.atomic"):
        assert edges[module] <= allowed
