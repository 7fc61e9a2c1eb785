"""install.py installs missing packages once and never touches the host's packages."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PIP = '''
"""A fake pip: record the arguments and "install" packages named imaginary-*."""
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
gradio>=99.0  # the host's
NumPy>=1.24
imaginary-thing>=0.5
imaginary-other
imaginary-old>=2.0; python_version < "3.10"
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder with install.py and what it imports, a requirements file and a fake pip."""
    shutil.copy(ROOT / "install.py", tmp_path)
    (tmp_path / "trainer").mkdir()
    for name in ("__init__.py", "__main__.py"):
        shutil.copy(ROOT / "trainer" / name, tmp_path / "trainer")
    (tmp_path / "requirements.txt").write_text(REQUIREMENTS)
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "pip.py").write_text("raise SystemExit('imported from the host folder')")
    (tmp_path / "site" / "pip").mkdir(parents=True)
    (tmp_path / "site" / "pip" / "__init__.py").touch()
    (tmp_path / "site" / "pip" / "__main__.py").write_text(PIP)
    return tmp_path


def run(checkout: Path) -> tuple[int, str]:
    """Run install.py from another folder, as hosts do; return its exit code and output."""
    options = {"cwd": checkout / "host", "capture_output": True, "text": True, "timeout": 300}
    env = {**os.environ, "PYTHONPATH": str(checkout / "site")}
    done = subprocess.run([sys.executable, str(checkout / "install.py")], env=env, **options)
    return done.returncode, done.stdout + done.stderr


def test_missing_packages_are_installed_once(checkout):
    code, output = run(checkout)
    assert code == 0 and "imaginary-thing>=0.5" in output
    asked = checkout / "site" / "asked.txt"
    (call,) = asked.read_text().splitlines()
    wanted, pinned = call.split("|")
    assert "imaginary-thing>=0.5 imaginary-other" in wanted
    assert not any(name in wanted for name in ("torch", "gradio", "NumPy", "numpy", "old"))
    assert "torch==" in pinned and "numpy==" in pinned
    before = {path for path in checkout.rglob("*") if "__pycache__" not in path.parts}
    assert run(checkout) == (0, "") and asked.read_text().splitlines() == [call]
    assert before == {path for path in checkout.rglob("*") if "__pycache__" not in path.parts}


def test_a_failed_installation_is_reported(checkout):
    """Without other packages than Python's own: install.py repairs the environment it runs in."""
    (checkout / "site" / "offline").touch()
    code, output = run(checkout)
    assert code == 3 and "installation failed" in output and "Traceback" not in output
    source = (ROOT / "install.py").read_text()
    imported = re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE)
    source = (ROOT / "trainer" / "__main__.py").read_text()
    imported += re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE)
    assert imported and set(imported) - {"trainer"} <= set(sys.stdlib_module_names)
