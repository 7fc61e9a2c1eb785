"""The five ways to load a checkout, each with one copy of the core (docs/architecture.md)."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from textwrap import dedent

import pytest

import s4s_core

ROOT = Path(__file__).resolve().parents[2]

# Appended to every script below: report which copies of our packages the process holds.
REPORT = """
import json
files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
print(json.dumps({
    "cores": [n for n, f in files.items() if f.endswith(os.path.join("s4s_core", "__init__.py"))],
    "roots": sorted({name.split(".")[0] for name in sys.modules}),
}))
"""


def run(*command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the checkout on its path; it must succeed."""
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env={**clean, **env}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def report(script: str, folder: Path, *arguments: Path) -> dict[str, list[str]]:
    """Run a script in a new process and return what REPORT prints."""
    code = "import importlib, importlib.util, os, pkgutil, sys, types\n" + script + REPORT
    done = run(sys.executable, "-c", code, *map(str, arguments), cwd=folder)
    return json.loads(done.stdout.splitlines()[-1])


def test_comfyui_loads_the_folder_by_path(tmp_path):
    script = """
        root = sys.argv[1]
        assert root not in sys.path
        foreign = sys.modules["nodes"] = types.ModuleType("nodes")
        name = root.replace(".", "_x_")
        spec = importlib.util.spec_from_file_location(name, os.path.join(root, "__init__.py"))
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert isinstance(module.NODE_CLASS_MAPPINGS, dict)
        assert set(module.NODE_DISPLAY_NAME_MAPPINGS) == set(module.NODE_CLASS_MAPPINGS)
        web = getattr(module, "WEB_DIRECTORY", None)
        assert web is None or os.path.isdir(os.path.join(root, web))
        assert sys.modules["nodes"] is foreign
        importlib.import_module(name + ".s4s_core.table")
    """
    loaded = report(dedent(script), tmp_path, ROOT)
    assert loaded["cores"] == [str(ROOT).replace(".", "_x_") + ".s4s_core"]
    assert not {"trainer", "s4s_core"} & set(loaded["roots"])


@pytest.mark.parametrize("module", ["s4s_core.table", "__init__", "trainer.cli, s4s_core.table"])
def test_a_folder_on_the_path_gives_one_core(module, tmp_path):
    """As in a WebUI and in the trainer; the root as a plain module loads nothing."""
    script = f"sys.path.insert(0, sys.argv[1])\nimport {module}\n"
    loaded = report(script, tmp_path, ROOT)
    assert loaded["cores"] == (["s4s_core"] if "core" in module else [])
    assert "nodes" not in loaded["roots"] and ("trainer" in loaded["roots"]) == ("cli" in module)


def test_trainer_help_imports_nothing_heavy():
    done = run(sys.executable, "-X", "importtime", "-m", "trainer", "--help", cwd=ROOT)
    assert "inspect" in done.stdout
    imported = {line.split("|")[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "s4s_core" in imported
    assert not {"torch", "numpy", "safetensors", "gradio", "PIL"} & imported


def test_pytest_holds_one_core():
    def named(file):
        loaded = [(n, getattr(m, "__file__", None)) for n, m in list(sys.modules.items())]
        return [name for name, path in loaded if path == str(file)]

    assert named(ROOT / "__init__.py") == []
    assert named(ROOT / "s4s_core" / "__init__.py") == ["s4s_core"]


def test_every_module_of_the_core_imports_alone(tmp_path):
    script = """
        sys.path.insert(0, sys.argv[1])
        import s4s_core
        for module in pkgutil.walk_packages(s4s_core.__path__, "s4s_core."):
            importlib.import_module(module.name)
        for name in s4s_core.__all__:
            assert callable(getattr(s4s_core, name)), name + " is shadowed by a module"
    """
    loaded = report(dedent(script), tmp_path, ROOT)
    hosts = {"comfy", "folder_paths", "modules", "gradio", "diffusers", "trainer", "nodes"}
    assert not hosts & set(loaded["roots"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of the checkout, built offline from a copy that takes the build/ folder."""
    folder = tmp_path_factory.mktemp("wheel")
    skip = shutil.ignore_patterns(".*", "__pycache__", "build", "docs", "tools", "*.egg-info")
    shutil.copytree(ROOT, folder / "source", ignore=skip)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*pip, "--wheel-dir", str(folder), str(folder / "source"), cwd=folder)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_only_the_core_and_the_trainer(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    kinds = {".py", ".typed", ".safetensors", ".json", ".toml", ".md"}
    sources = [p for folder in ("s4s_core", "trainer") for p in (ROOT / folder).rglob("*")]
    names = {p.relative_to(ROOT).as_posix() for p in sources if p.suffix in kinds}
    assert held == {name.replace("trainer/", "s4s_trainer/", 1) for name in names}
    assert wheel.name.startswith(f"s4s_solver-{s4s_core.__version__}-")


def test_the_installed_wheel_runs(wheel, tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    run(*pip, "--target", str(tmp_path / "site"), str(wheel), cwd=tmp_path)
    script = tmp_path / "site" / "bin" / "s4s"
    done = run(str(script), "--help", cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert "inspect" in done.stdout
    code = "sys.path.insert(0, sys.argv[1])\nimport s4s_trainer.cli, s4s_core.table\n"
    loaded = report(code, tmp_path, tmp_path / "site")
    assert loaded["cores"] == ["s4s_core"]
    assert not {"trainer", "nodes", "scripts", "tests"} & set(loaded["roots"])
