"""What the sources may not contain, read from them: nothing that runs a stranger's code, no network
at import, and no version of a dependency with a known hole."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("s4s_core", "trainer", "nodes", "s4s_webui", "scripts")
SOURCES = sorted(
    [p for folder in PRODUCT for p in (ROOT / folder).rglob("*.py")] + list(ROOT.glob("*.py"))
)
LISTS = [ROOT / "requirements.txt", *sorted((ROOT / "requirements").glob("*.txt"))]

FORBIDDEN_MODULES = {
    *("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"),
    *("runpy", "code", "codeop", "imp", "zipimport"),
}
FORBIDDEN_NAMES = {
    *("eval", "exec", "compile", "__import__", "__builtins__", "importlib.__import__"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("asyncio.create_subprocess_shell", "pty.spawn", "tempfile.mktemp"),
    *("torch.load", "torch.serialization.load", "torch.jit.load", "torch.export.load"),
    *("torch.hub", "torch.package"),
    *("numpy.load", "pandas.read_pickle", "yaml.load", "yaml.full_load", "yaml.unsafe_load"),
}
UNSAFE_SWITCHES = {"shell", "trust_remote_code", "share", "allow_pickle"}
NETWORK = {
    *("requests", "httpx", "aiohttp", "websockets", "urllib3", "huggingface_hub"),
    *("urllib.request", "http.client", "http.server", "socket", "socketserver", "_socket", "ssl"),
    *("ftplib", "smtplib", "xmlrpc", "telnetlib"),
}
SERVERS = {
    "trainer/panel/server.py": ["socket"],  # looks for a free port of this machine
    "nodes/routes.py": ["aiohttp"],  # answers in ComfyUI's own server
}
"""Sources that import a module of the network at import, because they serve, and which."""


# The lint


def aliases(tree):
    """{local name: what it stands for}, of a module's imports and of assignments of one name."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.split(".")[0]
                known[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and not node.level:
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = dotted(node.value, known)
            if value and value.split(".")[0] != node.targets[0].id:
                known.setdefault(node.targets[0].id, value)
    return known


def dotted(node, known):
    """The full name of an expression, as far as `known` tells, or None."""
    if isinstance(node, ast.Call) and dotted(node.func, known) == "getattr" and len(node.args) > 1:
        base, name = dotted(node.args[0], known), getattr(node.args[1], "value", None)
    elif isinstance(node, ast.Attribute):
        base, name = dotted(node.value, known), node.attr
    elif isinstance(node, ast.Name):
        return known.get(node.id, node.id).removeprefix("builtins.")
    else:
        return None
    return f"{base}.{name}".removeprefix("builtins.") if base and isinstance(name, str) else None


def imported(node, known):
    """Full names of what a node imports: statements, and import_module of a constant."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and dotted(node.func, known) == "importlib.import_module":
        given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
        return [n.value for n in given if isinstance(getattr(n, "value", None), str)]
    return []


def inside(name, modules):
    """The one of `modules` that a full name is, or lies in, or None."""
    parts = name.split(".")
    heads = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return next((head for head in heads if head in modules), None)


def faults(tree):
    """What a module contains that it may not, one text each."""
    known, safe = aliases(tree), set()
    for node in ast.walk(tree):  # outer nodes come first: a call before the name that it calls
        for name in imported(node, known):
            if inside(name.removeprefix("builtins."), FORBIDDEN_MODULES | FORBIDDEN_NAMES):
                yield f"line {node.lineno} imports {name}"
            if name.endswith(".*"):
                yield f"line {node.lineno} imports names that nobody sees"
        if isinstance(node, ast.Call):
            given = {k.arg: getattr(k.value, "value", k.value) for k in node.keywords}
            if given.get("weights_only") is True:
                safe.add(node.func)
            for switch in UNSAFE_SWITCHES & set(given):
                launched = getattr(node.func, "attr", None) == "launch"
                if given[switch] is not False and (switch != "share" or launched):
                    yield f"line {node.lineno} sets {switch}"
        name = dotted(node, known)
        if name in FORBIDDEN_NAMES and not (name == "torch.load" and node in safe):
            yield f"line {node.lineno} names {name}"


def run_at_import(node):
    """Every node that is run when a module is imported: all but the bodies of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in [*child.decorator_list, *child.args.defaults, *child.args.kw_defaults]:
                if part is not None:
                    yield part
                    yield from run_at_import(part)
        elif not isinstance(child, ast.Lambda):
            yield child
            yield from run_at_import(child)


def network_at_import(tree):
    """Modules of the network that are imported when the module is."""
    known = aliases(tree)
    found = [inside(n, NETWORK) for node in run_at_import(tree) for n in imported(node, known)]
    return [name for name in found if name]


BAD = [
    "import pickle",
    "import _pickle",
    "import runpy",
    "import torch.hub",
    "from pickle import loads",
    "from torch import hub",
    "import importlib; importlib.import_module('pickle')",
    "from importlib import import_module as get; get('marshal')",
    "import importlib; importlib.import_module(name='pickle')",
    "importlib.__import__('os')",
    "from torch import *",
    "eval('1')",
    "f = exec",
    "map(eval, texts)",
    "import builtins; builtins.exec(text)",
    "from builtins import exec as run",
    "getattr(builtins, 'exec')(text)",
    "__builtins__['eval'](text)",
    "__import__('os')",
    "os.system(x)",
    "from os import system",
    "import os as o; o.popen(x)",
    "getattr(os, 'system')(x)",
    "torch.load(path)",
    "torch.load(path, weights_only=False)",
    "torch.load(path, weights_only=flag)",
    "from torch import load",
    "from torch import load as read",
    "import torch as t; t.load(path)",
    "f = torch.load",
    "t = torch; t.load(path)",
    "torch.jit.load(path)",
    "from torch import jit; jit.load(path)",
    "from torch.jit import load",
    "torch.serialization.load(path)",
    "torch.hub.load(repository, name)",
    "import numpy as np; np.load(path)",
    "yaml.unsafe_load(text)",
    "subprocess.run(x, shell=True)",
    "subprocess.run(x, shell=flag)",
    "subprocess.getoutput(x)",
    "demo.launch(share=True)",
    "load(p, allow_pickle=True)",
    "load(p, trust_remote_code=True)",
    "def later():\n    import pickle",
    "try:\n    import dill\nexcept ImportError:\n    pass",
]
GOOD = [
    "torch.load(path, weights_only=True)",
    "import torch as t; t.load(path, weights_only=True)",
    "import re; pattern = re.compile('x')",
    "model.eval(); model.compile()",
    "from .pickle import shelf",
    "from . import code",
    "subprocess.run([x], shell=False)",
    "import importlib; importlib.import_module(name)",
    "from safetensors.torch import load; load(data)",
    "import json; json.load(file)",
    "getattr(torch, 'float32')",
    "def load(path): return load_solver(path)",
    "exec_module(module); evaluation = evaluate(x)",
    "Basis(share=0.5); demo.launch(share=False)",
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_nothing_runs_a_strangers_code(path):
    assert list(faults(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("code", BAD)
def test_the_lint_sees(code):
    assert list(faults(ast.parse(code)))


@pytest.mark.parametrize("code", GOOD)
def test_the_lint_lets_pass(code):
    assert not list(faults(ast.parse(code)))


# The network


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_only_servers_know_the_network_at_import(path):
    allowed = SERVERS.get(path.relative_to(ROOT).as_posix(), [])
    assert network_at_import(ast.parse(path.read_text(encoding="utf-8"))) == allowed


@pytest.mark.parametrize(
    "code",
    [
        "import socket",
        "import os, socket as s",
        "import http.client",
        "from urllib import request",
        "from urllib.request import urlopen",
        "from socket import create_connection",
        "import importlib; importlib.import_module('httpx')",
        "try:\n    import requests\nexcept ImportError:\n    pass",
        "try:\n    import json\nexcept ImportError:\n    import socket",
        "if fast:\n    pass\nelse:\n    import aiohttp",
        "with quiet():\n    import aiohttp.web",
        "class A:\n    import socket",
        "def f(x=__import__('importlib').import_module('x')): pass\nimport ssl",
        "import importlib\ndef f(x=importlib.import_module('socket')): pass",
    ],
)
def test_the_network_is_seen_wherever_it_runs_at_import(code):
    assert network_at_import(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    import socket",
        "async def f():\n    from urllib import request",
        "class A:\n    def f(self):\n        import httpx",
        "from urllib.parse import urlsplit",
        "from . import requests",
        "f = lambda: importlib.import_module('socket')",
    ],
)
def test_the_network_may_come_later(code):
    assert not network_at_import(ast.parse(code))


GUARD = """
import importlib, pkgutil, sys
ROOT, tried, count = sys.argv[1], [], 0
EVENTS = ("connect", "sendto", "sendmsg", "getaddrinfo", "gethostbyname")

def guard(event, arguments):
    if event in {"socket." + name for name in EVENTS}:
        tried.append(f"{event} {arguments[1:]}")
        raise ConnectionRefusedError("network at import")

def visit(package):
    global count
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".", lambda name: None):
        if not info.name.endswith("__main__"):
            try:
                importlib.import_module(info.name)
                count += 1
            except ImportError:  # an extra that is not installed here
                pass

sys.addaudithook(guard)
"""
AS_LIBRARY = """
sys.path.insert(0, ROOT)
for name in ("s4s_core", "trainer"):
    visit(importlib.import_module(name))
"""
AS_COMFYUI = """
sys.path.insert(0, ROOT + "/tests/helpers")
import comfyui_checks
pack = comfyui_checks.start(ROOT + "/tests/comfyui/double", ROOT, ".")
visit(importlib.import_module(pack.__name__ + ".nodes"))
assert pack.NODE_CLASS_MAPPINGS
"""
AS_WEBUI = """
sys.path[:0] = [ROOT, ROOT + "/tests/helpers"]
import pytest, webui_hosts
webui_hosts.Double("forge", pytest.MonkeyPatch())
spec = importlib.util.spec_from_file_location("script", ROOT + "/scripts/s4s_sampler.py")
spec.loader.exec_module(importlib.util.module_from_spec(spec))
visit(importlib.import_module("s4s_webui"))
"""


def guarded(code, folder):
    """Run code in a process that notes and refuses every use of the network: the process.

    It ends with 0 and the number of modules that were visited, or with what was tried.
    """
    end = "\nsys.exit('; '.join(tried) or print(count))"
    command = [sys.executable, "-c", GUARD + code + end, str(ROOT)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    "code, modules",
    [(AS_LIBRARY, 60), (AS_COMFYUI, 20), (AS_WEBUI, 10)],
    ids=["library", "comfyui", "webui"],
)
def test_importing_everything_connects_to_nothing(code, modules, tmp_path, monkeypatch):
    """Every module that can be imported here, as each host does, with sockets guarded."""
    monkeypatch.setenv("S4S_HOME", str(tmp_path))
    monkeypatch.setenv("DOUBLE_BASE", str(tmp_path))
    done = guarded(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) >= modules


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket\ntry:\n    socket.getaddrinfo('example.org', 80)\nexcept OSError:\n    pass",
        "import _socket\ntry: _socket.socket().connect(('127.0.0.1', 9))\nexcept OSError: pass",
    ],
)
def test_the_guard_sees(code, tmp_path):
    assert guarded(code, tmp_path).returncode == 1


# Dependencies


def bounds(file):
    """{package: lowest version} of a list."""
    lines = (line.split("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines())
    return dict(line.split(">=") for line in lines if line)


def release(version):
    return tuple(map(int, version.split(".")))


@pytest.mark.parametrize(
    "package, safe, advisory",
    [
        ("accelerate", "1.15", "CVE-2026-69112: paths of a checkpoint's parts leave its folder"),
        ("aiohttp", "3.14.3", "CVE-2026-69244: reads beyond the answer of a server"),
        ("diffusers", "0.38", "CVE-2026-44513: code of a pipeline runs without trust_remote_code"),
        ("gradio", "6.16", "GHSA-j36p-7w88-g82j: paths that leave their folder"),
        ("pillow", "12.3", "CVE-2026-40192 before 12.2, and writes out of bounds before 12.3"),
        ("pytest", "9.0.3", "CVE-2025-71176: a folder in /tmp that others can foresee"),
        ("scipy", "1.10", "CVE-2023-25399: a leak of references"),
        ("setuptools", "83", "CVE-2025-47273 before 78.1.1, CVE-2026-59890 before 83"),
        ("transformers", "5.10", "CVE-2026-4372 before 5.3 runs code; CVE-2026-9856 before 5.10"),
    ],
)
def test_versions_with_known_holes_are_ruled_out(package, safe, advisory):
    """In every list but the hosts', whose packages are theirs."""
    lowest = [found[package] for file in LISTS[1:] if package in (found := bounds(file))]
    assert lowest and all(release(low) >= release(safe) for low in lowest), advisory


def test_no_requirement_moves_what_a_host_has():
    """ComfyUI-Manager installs this list into ComfyUI's Python: only what is there anyway, with
    lower bounds that the oldest host meets (the WebUIs hold pillow 9.5). gradio would bring a
    huggingface-hub with which transformers 4 does not start."""
    lines = LISTS[0].read_text(encoding="utf-8").splitlines()
    listed = [re.fullmatch(r"([a-z0-9-]+)>=[0-9.]+", line) for line in lines if line[:1] != "#"]
    oldest = {"torch": "2.0", "numpy": "1.24", "safetensors": "0.4", "pillow": "9.5"}
    assert {match[1] for match in listed} == set(oldest)
    assert all(release(low) <= release(oldest[name]) for name, low in bounds(LISTS[0]).items())


def audit(*arguments):
    """What pip-audit says, as {package: ids of its holes}; a package not looked up is an error."""
    command = [sys.executable, "-m", "pip_audit", "--strict", "--format", "json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        raise LookupError(done.stderr.strip().splitlines()[-1])
    found = json.loads(done.stdout)["dependencies"]
    return {entry["name"]: [hole["id"] for hole in entry["vulns"]] for entry in found}


def test_the_audit_tells_holes_from_silence(tmp_path, monkeypatch):
    """With a pip-audit that finds a hole, and then one that cannot look up what it is asked for."""
    (tmp_path / "pip_audit.py").write_text(
        "import json, sys\n"
        "if 'good.txt' in sys.argv:\n"
        "    print(json.dumps({'dependencies': [{'name': 'a', 'vulns': [{'id': 'CVE-1'}]}]}))\n"
        "sys.exit('first line\\nnot found')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert audit("--requirement", "good.txt") == {"a": ["CVE-1"]}
    with pytest.raises(LookupError, match="^not found$"):
        audit("--requirement", "unknown.txt")


@pytest.fixture(scope="module")
def advisories(tmp_path_factory):
    """Skips where pip-audit or its service is not to be had: it must know an old pillow's holes."""
    pytest.importorskip("pip_audit", reason="pip-audit is not installed (requirements/dev.txt)")
    old = tmp_path_factory.mktemp("audit") / "old.txt"
    old.write_text("pillow==9.5.0\n", encoding="utf-8")
    try:
        known = audit("--no-deps", "--disable-pip", "--requirement", str(old))
    except LookupError as error:
        pytest.skip(f"PyPI's advisories cannot be reached from here: {error}")
    assert known["pillow"]


@pytest.mark.slow
@pytest.mark.internet
@pytest.mark.parametrize("file", LISTS, ids=lambda path: path.stem)
def test_no_requirement_has_a_known_hole(advisories, file):
    """What an installation of today would get, against the advisories of today."""
    found = audit("--requirement", str(file))
    assert found and not {name: holes for name, holes in found.items() if holes}
