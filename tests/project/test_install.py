"""install.py: what is missing is installed once, and never anything of the host's."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PIP = '''
"""Stands in for pip: notes what it is asked for, and "installs" what has a name of our own."""
import pathlib, re, sys
here = pathlib.Path(__file__).parents[1]
arguments = sys.argv[1:]
constraints = pathlib.Path(arguments[arguments.index("-c") + 1]).read_text()
with (here / "asked.txt").open("a") as file:
    print(*arguments, "|", *constraints.split(), file=file)
if (here / "offline").exists():
    sys.exit(3)
for name in re.findall("imaginary-[a-z]+", " ".join(arguments)):
    folder = here / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
'''

REQUIREMENTS = """# a comment
torch>=99.0
gradio>=99.0  # moved by nobody
NumPy>=1.24
imaginary-thing>=0.5
imaginary-other
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder with install.py and requirements of its own, and a pip that only takes notes."""
    shutil.copy(ROOT / "install.py", tmp_path)
    (tmp_path / "requirements.txt").write_text(REQUIREMENTS)
    (tmp_path / "site" / "pip").mkdir(parents=True)
    (tmp_path / "site" / "pip" / "__init__.py").touch()
    (tmp_path / "site" / "pip" / "__main__.py").write_text(PIP)
    return tmp_path


def run(checkout):
    """Start install.py as hosts do, from another folder; (exit code, output)."""
    done = subprocess.run(
        [sys.executable, str(checkout / "install.py")],
        env={**os.environ, "PYTHONPATH": str(checkout / "site")},
        cwd=checkout / "site",
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def asked(checkout):
    path = checkout / "site" / "asked.txt"
    return path.read_text().splitlines() if path.exists() else []


def test_what_is_missing_is_installed_once(checkout):
    code, said = run(checkout)
    assert code == 0 and "imaginary-thing>=0.5" in said
    (call,) = asked(checkout)
    wanted, held = call.split("|")
    assert "imaginary-thing>=0.5 imaginary-other" in wanted
    assert not any(name in wanted for name in ("torch", "gradio", "NumPy", "numpy"))
    assert "torch==" in held and "numpy==" in held
    before = {path for path in checkout.rglob("*") if "__pycache__" not in path.parts}
    assert run(checkout) == (0, "")
    assert asked(checkout) == [call]
    assert before == {path for path in checkout.rglob("*") if "__pycache__" not in path.parts}


def test_a_failure_is_told_and_nothing_else_happens(checkout):
    (checkout / "site" / "offline").touch()
    code, said = run(checkout)
    assert code == 3 and "that failed" in said and "Traceback" not in said


def test_it_is_silent_here():
    """Where the project's requirements are installed there is nothing to do, twice in a row."""
    import importlib.metadata as metadata

    names = [line.split(">=")[0] for line in (ROOT / "requirements.txt").read_text().splitlines()]
    names = {name for name in names if name and not name.startswith("#")}
    present = {dist.metadata["Name"].lower() for dist in metadata.distributions()}
    if not names <= present | {"torch", "gradio", "numpy"}:
        pytest.skip("this environment lacks some of requirements.txt")
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(ROOT / "install.py")], capture_output=True, text=True, timeout=300
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_needs_nothing_but_python():
    """The host's environment is what it repairs: no import of ours, none of the host's."""
    source = (ROOT / "install.py").read_text()
    imported = {
        line.split()[1].split(".")[0]
        for line in source.splitlines()
        if line.startswith(("import ", "from "))
    }
    assert imported <= set(sys.stdlib_module_names)
