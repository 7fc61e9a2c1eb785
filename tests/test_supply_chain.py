"""What the sources may not contain, read from them: nothing that runs a stranger's code, no network
at import, and no version of a dependency with a known hole."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("s4s_core", "trainer", "nodes", "s4s_webui", "scripts")
SOURCES = sorted(
    [p for folder in PRODUCT for p in (ROOT / folder).rglob("*.py")] + list(ROOT.glob("*.py"))
)

FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "torch.load",
    "torch.hub.load",
    "numpy.load",
    "np.load",
    "yaml.load",
    "tempfile.mktemp",
}
NETWORK = {"requests", "httpx", "urllib.request", "http.client", "socket", "aiohttp", "websockets"}
FLOORS = {"gradio": (6, 16), "pillow": (9, 5)}
"""Lowest versions without known holes that the standalone panel may be installed with."""


def dotted(node):
    """The dotted name of an expression, or None."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return base and f"{base}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def faults(tree):
    """What a module contains that it may not, one text each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
            for name in names:
                if name and name.split(".")[0] in FORBIDDEN_IMPORTS:
                    yield f"line {node.lineno} imports {name}"
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            keywords = {k.arg: k.value for k in node.keywords}
            safe = (
                name == "torch.load" and getattr(keywords.get("weights_only"), "value", 0) is True
            )
            if name in FORBIDDEN_CALLS and not safe:
                yield f"line {node.lineno} calls {name}"
            if getattr(keywords.get("shell"), "value", False):
                yield f"line {node.lineno} starts a shell"
            for unsafe in ("trust_remote_code", "share", "allow_pickle"):
                if getattr(keywords.get(unsafe), "value", False) is True:
                    yield f"line {node.lineno} sets {unsafe}"


def network_at_import(tree):
    """Modules of the network that are imported when the module is."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in NETWORK)
        elif isinstance(node, ast.ImportFrom) and node.module in NETWORK:
            yield node.module


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_nothing_runs_a_strangers_code(path):
    assert list(faults(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "subprocess.run(x, shell=True)",
        "demo.launch(share=True)",
        "np.load(p, allow_pickle=True)",
    ],
)
def test_the_lint_sees(code):
    assert list(faults(ast.parse(code)))


def test_the_lint_lets_safe_loading_pass():
    assert not list(faults(ast.parse("torch.load(path, weights_only=True)")))


@pytest.mark.parametrize("path", sorted((ROOT / "s4s_core").rglob("*.py")), ids=lambda p: p.stem)
def test_the_core_knows_no_network(path):
    assert list(network_at_import(ast.parse(path.read_text(encoding="utf-8")))) == []


def test_importing_everything_connects_to_nothing(tmp_path):
    """Every module of the core and the trainer that can be imported here, with sockets guarded."""
    code = """
import importlib, pkgutil, socket, sys
def refuse(*a, **k): raise AssertionError(f"network at import: {a}")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.create_connection = socket.getaddrinfo = refuse
count = 0
for package in ("s4s_core", "trainer"):
    root = importlib.import_module(package)
    for info in pkgutil.walk_packages(root.__path__, package + ".", onerror=lambda name: None):
        if info.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(info.name)
            count += 1
        except ImportError:  # an extra that is not installed here
            pass
print(count)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 60


def test_versions_with_known_holes_are_ruled_out():
    lines = (ROOT / "requirements" / "panel.txt").read_text(encoding="utf-8").splitlines()
    for line in filter(None, (line.split("#")[0].strip() for line in lines)):
        name, _, lowest = line.partition(">=")
        assert tuple(map(int, lowest.split("."))) >= FLOORS[name]


def test_no_requirement_moves_what_a_host_has():
    """ComfyUI-Manager installs this list into ComfyUI's Python: only what is there anyway, with
    lower bounds. gradio would bring a huggingface-hub with which transformers 4 does not start."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    listed = [re.fullmatch(r"([a-z0-9-]+)>=[0-9.]+", line) for line in lines if line[:1] != "#"]
    assert {match[1] for match in listed} == {"torch", "numpy", "safetensors", "pillow"}


@pytest.mark.slow
@pytest.mark.internet
@pytest.mark.parametrize("name", ["requirements.txt", "requirements/panel.txt"])
def test_no_requirement_has_a_known_hole(name):
    """What an installation of today would get, against the advisories of today."""
    pytest.importorskip("pip_audit", reason="needs pip-audit and the internet")
    command = [sys.executable, "-m", "pip_audit", "--requirement", ROOT / name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
