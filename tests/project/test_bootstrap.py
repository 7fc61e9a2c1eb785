"""s4s.py: its logic, and real runs in a small checkout with packages made here."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from wheels import make_wheel, offline

ROOT = Path(__file__).resolve().parents[2]

TRAINER = """
import os, sys, time
import tiny
print("trainer", os.getcwd(), sys.argv[1:], flush=True)
if sys.argv[1:] == ["wait"]:
    try:
        print("waiting", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        time.sleep(0.5)
        print("saved", flush=True)
        sys.exit(33)
sys.exit(int(sys.argv[-1]) if sys.argv[-1].isdigit() else 0)
"""
PYTEST = "import sys; print('pytest', sys.argv[1:]); sys.exit(5)"


@pytest.fixture(scope="module")
def s4s():
    spec = importlib.util.spec_from_file_location("s4s_bootstrap", ROOT / "s4s.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def listing(tmp_path):
    """Return a function that writes a requirements file."""

    def write(text):
        file = tmp_path / "requirements.txt"
        file.write_text(text)
        return file

    return write


# Logic


def test_requirements_are_read(s4s, listing):
    file = listing("# a comment\n\ntorch>=2.0  # why\nPillow\n")
    assert s4s.requirements(file) == [("torch", "2.0"), ("Pillow", "0")]


@pytest.mark.parametrize("line", ["torch==2.0", "torch<3", "-r other.txt", "torch>=2,<3"])
def test_only_lower_bounds_are_accepted(s4s, listing, line):
    with pytest.raises(s4s.SetupError, match="name>=1.2"):
        s4s.requirements(listing(line))


def test_our_requirements_have_only_lower_bounds(s4s):
    files = [*s4s.TEST_FILES, *(ROOT / "requirements").glob("*.txt")]
    assert all(s4s.requirements(file) for file in files)


@pytest.mark.parametrize("low, high", [("2.9", "2.10"), ("1.99.9", "2"), ("2.0.1", "2.1.0+cu121")])
def test_versions_are_ordered(s4s, low, high):
    assert s4s.release(low) < s4s.release(high)
    assert s4s.release("2.1rc1") == s4s.release("2.1.0+cpu") == s4s.release("2.1")


@pytest.mark.parametrize(
    "installed, enough",
    [("2.0", True), ("2.15.0+cu130", True), ("1.13.1", False), (None, False), ("absent", False)],
)
def test_the_running_python_is_checked(s4s, listing, monkeypatch, installed, enough):
    def version(name):
        if installed == "absent":
            raise s4s.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(s4s.metadata, "version", version)
    assert s4s.satisfied([listing("torch>=2.0")]) is enough


def test_a_python_without_venv_is_reported(s4s, monkeypatch, tmp_path):
    monkeypatch.setattr(s4s.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(s4s.SetupError, match="no venv module"):
        s4s.prepare(tmp_path / "venv", [])


def test_an_old_python_is_reported():
    code = "import runpy, sys; sys.version_info = (3, 9, 1); runpy.run_path('s4s.py')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: S4S needs Python 3.10") and done.stderr.count("\n") == 1


# Real runs


class Checkout:
    """A folder with the real s4s.py and a tiny trainer, with wheels instead of a network."""

    def __init__(self, folder):
        self.folder = folder / "check out"
        self.elsewhere = folder / "elsewhere"
        self.venv = self.folder / ".venv"
        self.python = self.venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        for path in (self.folder / "trainer", self.folder / "requirements", self.elsewhere):
            path.mkdir(parents=True)
        shutil.copy(ROOT / "s4s.py", self.folder)
        (self.folder / "trainer" / "__init__.py").touch()
        (self.folder / "trainer" / "__main__.py").write_text(TRAINER)
        self.requirements = self.folder / "requirements.txt"
        self.requirements.write_text("tiny>=1.0\n")
        (self.folder / "requirements" / "panel.txt").write_text("tiny>=1.1\n")
        (self.folder / "requirements" / "lpips.txt").write_text("tiny>=1.1\n")
        (self.folder / "requirements" / "dev.txt").write_text("pytest>=8.0\n")
        wheels = folder / "wheels"
        wheels.mkdir()
        make_wheel(wheels, "tiny", "1.5", __init__="")
        make_wheel(wheels, "pytest", "8.0", __init__="", __main__=PYTEST)
        self.env = {k: v for k, v in os.environ.items() if k not in ("S4S_VENV", "PYTHONPATH")}
        self.env |= offline(wheels)

    def command(self, *arguments):
        return [sys.executable, str(self.folder / "s4s.py"), *arguments]

    def run(self, *arguments, **env):
        return subprocess.run(
            self.command(*arguments),
            cwd=self.elsewhere,
            env=self.env | env,
            capture_output=True,
            text=True,
        )

    def signal(self, number, group):
        """Start a waiting command and signal it, or its whole group as Ctrl-C does."""
        process = subprocess.Popen(
            self.command("wait"),
            cwd=self.elsewhere,
            env=self.env,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # Background jobs of a shell ignore Ctrl-C, and pytest may be one.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert process.stdout.readline().startswith("trainer")
        assert process.stdout.readline() == "waiting\n"
        (os.killpg if group else os.kill)(process.pid, number)
        out, _ = process.communicate(timeout=120)
        return process.returncode, out


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout that was set up by a first run, which is checked here."""
    checkout = Checkout(tmp_path_factory.mktemp("bootstrap"))
    done = checkout.run("some", "7")
    assert done.returncode == 7, done.stderr
    assert f"trainer {checkout.elsewhere} ['some', '7']" in done.stdout
    assert "installing tiny" in done.stdout and checkout.python.exists()
    return checkout


def test_nothing_is_installed_twice(checkout):
    done = checkout.run("again", "3")
    assert done.returncode == 3
    assert done.stdout.splitlines() == [f"trainer {checkout.elsewhere} ['again', '3']"]


def test_the_panel_is_the_default_command(checkout):
    assert f"trainer {checkout.elsewhere} ['panel']" in checkout.run().stdout


def test_changed_requirements_are_installed(checkout):
    checkout.requirements.write_text("tiny>=1.2\n")
    assert "installing tiny" in checkout.run("0").stdout
    assert "installing" not in checkout.run("0").stdout


def test_a_failed_install_is_reported_and_repeated(checkout):
    good = checkout.requirements.read_text()
    checkout.requirements.write_text("tiny>=99\n")
    for _ in range(2):
        done = checkout.run("0")
        assert done.returncode == 1 and "trainer" not in done.stdout
        assert done.stderr.splitlines()[-1].startswith("error: pip could not install")
    checkout.requirements.write_text(good)
    assert checkout.run("0").returncode == 0


def test_the_test_command_installs_and_runs_pytest(checkout):
    done = checkout.run("test", "-k", "some thing")
    assert done.returncode == 5, done.stderr
    assert "installing tiny, pytest" in done.stdout
    assert "pytest ['-k', 'some thing']" in done.stdout
    assert checkout.run("0").stdout.startswith("trainer")  # the other stamp is still valid


def remove_pip(checkout):
    for path in checkout.venv.rglob("site-packages/pip*"):
        shutil.rmtree(path)
    checkout.venv.joinpath("s4s-requirements.stamp").unlink()


def remove_python(checkout):
    for path in checkout.python.parent.glob("python*"):
        path.unlink()


def remove_stamps_and_packages(checkout):
    for path in [*checkout.venv.glob("*.stamp"), *checkout.venv.rglob("site-packages/tiny/*.py")]:
        path.unlink()
    for path in checkout.venv.rglob("site-packages/tiny-*"):
        shutil.rmtree(path)


@pytest.mark.parametrize("damage", [remove_pip, remove_python, remove_stamps_and_packages])
def test_an_incomplete_environment_is_repaired(checkout, damage):
    damage(checkout)
    done = checkout.run("4")
    assert done.returncode == 4, done.stderr
    assert checkout.run("0").stdout.startswith("trainer")


def test_an_interrupted_install_leaves_no_stamp(checkout, s4s, monkeypatch):
    monkeypatch.setattr(s4s, "install", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    changed = checkout.folder / "requirements" / "requirements.txt"
    changed.write_text("tiny\n")
    with pytest.raises(KeyboardInterrupt):
        s4s.prepare(checkout.venv, [changed])
    assert not checkout.venv.joinpath("s4s-requirements.stamp").exists()
    assert "installing tiny" in checkout.run("0").stdout


def test_a_python_with_every_package_is_used(checkout, tmp_path):
    packages = next(checkout.venv.rglob("site-packages"))
    done = checkout.run("0", PYTHONPATH=str(packages), S4S_VENV=str(tmp_path / "venv"))
    assert done.returncode == 0 and not (tmp_path / "venv").exists()


def test_a_folder_that_cannot_be_created_is_reported(checkout, tmp_path):
    (tmp_path / "file").touch()
    done = checkout.run("0", S4S_VENV=str(tmp_path / "file"))
    assert done.returncode == 1
    message = f"error: could not create an environment in {tmp_path / 'file'}"
    assert done.stderr.splitlines()[-1].startswith(message)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_lets_the_command_finish(checkout):
    code, out = checkout.signal(signal.SIGINT, group=True)
    assert code == 33 and "saved" in out


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_sigterm_reaches_the_command(checkout):
    code, out = checkout.signal(signal.SIGTERM, group=False)
    assert code == 128 + signal.SIGTERM and "saved" not in out
