"""The sources run no foreign code, importing them uses no network, and the requirements rule out
vulnerable versions and change no package of a host."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
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
    "trainer/panel/server.py": ["socket"],  # looks for a free port on this machine
    "nodes/routes.py": ["aiohttp"],  # answers in ComfyUI's own server
}
"""Sources that import network modules at module level, because they are servers."""


# Forbidden code


def aliases(tree: ast.Module) -> dict[str, str]:
    """Map local names to full names, for a module's imports and its assignments of one name."""
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


def dotted(node: ast.AST, known: dict[str, str]) -> str | None:
    """Return the full name of an expression, or None."""
    if isinstance(node, ast.Call) and dotted(node.func, known) == "getattr" and len(node.args) > 1:
        base, name = dotted(node.args[0], known), getattr(node.args[1], "value", None)
    elif isinstance(node, ast.Attribute):
        base, name = dotted(node.value, known), node.attr
    elif isinstance(node, ast.Name):
        return known.get(node.id, node.id).removeprefix("builtins.")
    else:
        return None
    return f"{base}.{name}".removeprefix("builtins.") if base and isinstance(name, str) else None


def imported(node: ast.AST, known: dict[str, str]) -> list[str]:
    """Return the full names that a node imports, by statement or by import_module("name")."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and dotted(node.func, known) == "importlib.import_module":
        given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
        return [n.value for n in given if isinstance(getattr(n, "value", None), str)]
    return []


def inside(name: str, modules: set[str]) -> str | None:
    """Return the module among `modules` that contains a full name, or None."""
    parts = name.split(".")
    heads = (".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return next((head for head in heads if head in modules), None)


def violations(tree: ast.Module) -> Iterator[str]:
    """Describe everything in a module that is forbidden."""
    known, safe = aliases(tree), set()
    for node in ast.walk(tree):  # outer nodes come first: a call before its function's name
        for name in imported(node, known):
            if inside(name.removeprefix("builtins."), FORBIDDEN_MODULES | FORBIDDEN_NAMES):
                yield f"line {node.lineno} imports {name}"
            if name.endswith(".*"):
                yield f"line {node.lineno} uses a star import"
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


def run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every node that runs when a module is imported: all but function bodies."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in [*child.decorator_list, *child.args.defaults, *child.args.kw_defaults]:
                if part is not None:
                    yield part
                    yield from run_at_import(part)
        elif not isinstance(child, ast.Lambda):
            yield child
            yield from run_at_import(child)


def network_at_import(tree: ast.Module) -> list[str]:
    """Return the network modules that a module imports at module level."""
    known = aliases(tree)
    found = [inside(n, NETWORK) for node in run_at_import(tree) for n in imported(node, known)]
    return [name for name in found if name]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_source_can_run_foreign_code(path):
    """And only servers import network modules at module level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert list(violations(tree)) == []
    assert network_at_import(tree) == SERVERS.get(path.relative_to(ROOT).as_posix(), [])


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
            except ImportError:  # a package that is not installed
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


HIDDEN = "import socket\ntry: socket.getaddrinfo('example.org', 80)\nexcept OSError: pass"


@pytest.mark.parametrize(
    "code, modules",
    [(AS_LIBRARY, 60), (AS_COMFYUI, 14), (AS_WEBUI, 5), (HIDDEN, None)],
    ids=["library", "comfyui", "webui", "the guard itself"],
)
def test_importing_uses_no_network(code, modules, tmp_path):
    """Import every module the way each host does, in a process that records every connection."""
    code = f"{GUARD}{code}\nsys.exit('; '.join(tried) or print(count))"
    env = os.environ | {"S4S_HOME": str(tmp_path), "DOUBLE_BASE": str(tmp_path)}
    command = [sys.executable, "-c", code, str(ROOT)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == (modules is None), done.stderr
    assert modules is None or int(done.stdout.splitlines()[-1]) >= modules


# Dependencies


def release(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def bounds(file: Path) -> dict[str, tuple[int, ...]]:
    """Map the packages in a requirements file to their minimum versions."""
    lines = (re.split("[#;]", line)[0].strip() for line in file.read_text("utf-8").splitlines())
    return {name: release(low) for name, low in (line.split(">=") for line in lines if line)}


SAFE = {
    "accelerate": "1.15",  # CVE-2026-69112: a sharded checkpoint names files outside its folder
    "aiohttp": "3.14.3",  # CVE-2026-69244: reads beyond a server's answer
    "diffusers": "0.38",  # CVE-2026-44513: a pipeline's code runs without trust_remote_code
    "gradio": "6.16",  # GHSA-j36p-7w88-g82j: paths outside the folder
    "pillow": "12.3",  # CVE-2026-40192 before 12.2, and writes out of bounds before 12.3
    "pytest": "9.0.3",  # CVE-2025-71176: a predictable folder in /tmp
    "scipy": "1.10",  # CVE-2023-25399: a reference leak
    "setuptools": "83",  # CVE-2025-47273 before 78.1.1, CVE-2026-59890 before 83
    "transformers": "5.10",  # CVE-2026-4372 before 5.3 runs code; CVE-2026-9856 before 5.10
}


@pytest.mark.parametrize("package", SAFE)
def test_vulnerable_versions_are_ruled_out(package):
    """In every list except requirements.txt: the hosts choose the versions of those packages."""
    minimums = [known[package] for file in LISTS[1:] if package in (known := bounds(file))]
    assert minimums and min(minimums) >= release(SAFE[package])


def test_requirements_change_no_host_package():
    """ComfyUI-Manager installs requirements.txt into ComfyUI's Python. So it lists only packages
    that every host has, with minimum versions that the oldest host meets (the WebUIs pin pillow
    9.5). gradio, for example, would install a huggingface-hub that breaks transformers 4. Only
    tomli may be new, to Python 3.10: it needs no other package."""
    oldest = {"torch": (2, 0), "numpy": (1, 24), "safetensors": (0, 4), "pillow": (9, 5)}
    oldest["tomli"] = (2, 0)
    listed = bounds(LISTS[0])
    assert set(listed) == set(oldest)
    assert all(low <= oldest[name] for name, low in listed.items())


def audit(*arguments: str) -> dict[str, list[str]]:
    """Run pip-audit; map packages to advisories. Raise LookupError if a package is unknown."""
    command = [sys.executable, "-m", "pip_audit", "--strict", "--format", "json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        raise LookupError(done.stderr.strip().splitlines()[-1])
    packages = json.loads(done.stdout)["dependencies"]
    return {entry["name"]: [v["id"] for v in entry["vulns"]] for entry in packages}


@pytest.fixture(scope="module")
def advisories(tmp_path_factory):
    """Skip without pip-audit or its service, which must know the advisories for an old pillow."""
    pytest.importorskip("pip_audit", reason="pip-audit is not installed (requirements/dev.txt)")
    old = tmp_path_factory.mktemp("audit") / "old.txt"
    old.write_text("pillow==9.5.0\n", encoding="utf-8")
    try:
        known = audit("--no-deps", "--disable-pip", "--requirement", str(old))
    except LookupError as error:
        pytest.skip(f"PyPI's advisories cannot be reached: {error}")
    assert known["pillow"]


@pytest.mark.slow
@pytest.mark.internet
@pytest.mark.parametrize("file", LISTS, ids=lambda path: path.stem)
def test_no_requirement_has_a_known_vulnerability(advisories, file):
    """Check what would be installed today against today's advisories."""
    packages = audit("--requirement", str(file))
    assert packages and not {name: ids for name, ids in packages.items() if ids}
