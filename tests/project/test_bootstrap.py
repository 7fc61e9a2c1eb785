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

CLI = """
import os, sys, time
import tiny

def main():
    print("trainer", os.getcwd(), sys.argv[1:], flush=True)
    if sys.argv[1:] == ["wait"]:
        try:
            print("waiting", flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            print("saved", flush=True)
            return 33
    return int(sys.argv[-1]) if sys.argv[-1].isdigit() else 0
"""
PYTEST = "import sys; print('pytest', sys.argv[1:]); sys.exit(5)"


@pytest.fixture(scope="module")
def s4s():
    spec = importlib.util.spec_from_file_location("s4s_bootstrap", ROOT / "s4s.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Logic


def test_requirements_are_lower_bounds(s4s, tmp_path):
    file = tmp_path / "requirements.txt"
    file.write_text("# a comment\n\ntorch>=2.0  # why\nPillow\n")
    assert s4s.requirements(file) == [("torch", "2.0"), ("Pillow", "0")]
    older, newer = sys.version_info.minor, sys.version_info.minor + 1
    file.write_text(f'a>=1; python_version < "3.{older}"\nb>=1; python_version < "3.{newer}"\n')
    assert s4s.requirements(file) == [("b", "1")]
    refused = ("torch==2.0", "torch<3", "-r other.txt", "torch>=2,<3", 'a; os_name == "nt"')
    for line in (*refused, 'a; python_version < "3.11" or os_name == "nt"'):
        file.write_text(line)
        with pytest.raises(s4s.SetupError, match="name>=1.2"):
            s4s.requirements(file)
    assert all(map(s4s.requirements, [*s4s.TEST_FILES, *(ROOT / "requirements").glob("*.txt")]))


@pytest.mark.parametrize(
    "installed, enough",
    [
        *(("2.9", True), ("2.10", True), ("3", True), ("2.15.0+cu130", True), ("2.9rc1", True)),
        *(("1.13.1", False), ("2.8.1+cpu", False), (None, False), ("absent", False)),
    ],
)
def test_the_running_python_is_checked(s4s, tmp_path, monkeypatch, installed, enough):
    def version(name):
        if installed == "absent":
            raise s4s.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(s4s.metadata, "version", version)
    (tmp_path / "requirements.txt").write_text("torch>=2.9")
    assert s4s.satisfied([tmp_path / "requirements.txt"]) is enough


def test_an_old_python_and_one_without_venv_are_reported(s4s, monkeypatch, tmp_path):
    code = "import runpy, sys; sys.version_info = (3, 9, 1); runpy.run_path('s4s.py')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: S4S needs Python 3.10") and done.stderr.count("\n") == 1
    monkeypatch.setattr(s4s.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(s4s.SetupError, match="no venv module"):
        s4s.prepare(tmp_path / "venv", [])


# Real runs


class Checkout:
    """A folder with the real s4s.py and start of the trainer, a tiny command line and wheels."""

    def __init__(self, folder):
        self.folder = folder / "check out"
        self.elsewhere = folder / "elsewhere"
        self.venv = self.folder / ".venv"
        self.python = self.venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        for path in (self.folder / "trainer", self.folder / "requirements", self.elsewhere):
            path.mkdir(parents=True)
        shutil.copy(ROOT / "s4s.py", self.folder)
        for name in ("__init__.py", "__main__.py"):
            shutil.copy(ROOT / "trainer" / name, self.folder / "trainer")
        (self.folder / "trainer" / "cli.py").write_text(CLI)
        for name in ("trainer", "tiny", "json", "pip", "venv", "ensurepip", "pytest"):
            (self.elsewhere / f"{name}.py").write_text(f"raise SystemExit('imported {name}')")
        self.requirements = self.folder / "requirements.txt"
        self.requirements.write_text("tiny>=1.0\n")
        for name, line in (("panel", "tiny>=1.1"), ("lpips", "tiny>=1.1"), ("dev", "pytest>=8.0")):
            (self.folder / "requirements" / f"{name}.txt").write_text(f"{line}\n")
        wheels = folder / "wheels"
        wheels.mkdir()
        make_wheel(wheels, "tiny", "1.5", __init__="")
        make_wheel(wheels, "pytest", "8.0", __init__="", __main__=PYTEST)
        self.env = {k: v for k, v in os.environ.items() if k not in ("S4S_VENV", "PYTHONPATH")}
        self.env |= offline(wheels)

    def command(self, *arguments):
        return [sys.executable, str(self.folder / "s4s.py"), *arguments]

    def run(self, *arguments, **env):
        options = {"cwd": self.elsewhere, "env": self.env | env}
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, **options)

    def signal(self, number, group):
        """Start a waiting command and signal it, or its whole group as Ctrl-C does."""
        options = {"cwd": self.elsewhere, "env": self.env, "start_new_session": True}
        # Background jobs of a shell ignore Ctrl-C, and pytest may be one.
        options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        process = subprocess.Popen(
            self.command("wait"), stdout=subprocess.PIPE, text=True, **options
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


def test_packages_are_installed_once_and_when_the_list_changes(checkout, tmp_path):
    done = checkout.run()  # the panel is the default command
    assert done.stdout.splitlines() == [f"trainer {checkout.elsewhere} ['panel']"]
    checkout.requirements.write_text("tiny>=1.2\n")
    assert "installing tiny" in checkout.run("0").stdout
    assert "installing" not in checkout.run("0").stdout
    packages = next(checkout.venv.rglob("site-packages"))  # a Python that has them all is used
    done = checkout.run("0", PYTHONPATH=str(packages), S4S_VENV=str(tmp_path / "venv"))
    assert done.returncode == 0 and not (tmp_path / "venv").exists()


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


def spoil_stamps(checkout):
    for path in checkout.venv.glob("*.stamp"):
        path.write_bytes(b"\xff\x00")


@pytest.mark.parametrize(
    "damage", [remove_pip, remove_python, remove_stamps_and_packages, spoil_stamps]
)
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


def python_is_garbage(venv):
    (venv / "bin").mkdir(parents=True)
    for name in ("python", "python3", f"python3.{sys.version_info.minor}"):
        (venv / "bin" / name).write_bytes(b"\xff\x00")


def python_is_a_folder(venv):
    (venv / "bin" / "python").mkdir(parents=True)


def a_stamp_is_a_folder(venv):
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    (venv / "s4s-requirements.stamp" / "x").mkdir(parents=True)


@pytest.mark.skipif(os.name == "nt", reason="the folders of POSIX")
@pytest.mark.parametrize("damage", [python_is_garbage, python_is_a_folder, a_stamp_is_a_folder])
def test_a_garbage_environment_says_delete_it(checkout, tmp_path, damage):
    damage(tmp_path / "venv")
    done = checkout.run("0", S4S_VENV=str(tmp_path / "venv"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert str(tmp_path / "venv") in last and "elete" in last and last.endswith("again.")


def test_a_damaged_package_says_delete_the_environment(checkout):
    (package,) = checkout.venv.rglob("site-packages/tiny/__init__.py")
    package.write_text("import no_such_module")
    done = checkout.run("0")
    package.write_text("")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert str(checkout.venv) in done.stderr and "delete it" in done.stderr


def test_a_folder_that_cannot_be_created_is_reported(checkout, tmp_path):
    (tmp_path / "file").touch()
    done = checkout.run("0", S4S_VENV=str(tmp_path / "file"))
    assert done.returncode == 1
    message = f"error: could not create an environment in {tmp_path / 'file'}"
    assert done.stderr.splitlines()[-1].startswith(message)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_lets_the_command_finish_and_sigterm_ends_it(checkout):
    code, out = checkout.signal(signal.SIGINT, group=True)
    assert code == 33 and "saved" in out
    code, out = checkout.signal(signal.SIGTERM, group=False)
    assert code == 128 + signal.SIGTERM and "saved" not in out


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_while_the_command_ends_does_not_lose_its_exit_code(s4s, monkeypatch):
    waitpid = os.waitpid

    def interrupted(*arguments):
        found = waitpid(*arguments)
        signal.raise_signal(signal.SIGINT)
        return found

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(os, "waitpid", interrupted)
    try:
        assert s4s.run([sys.executable, "-c", "raise SystemExit(33)"]) == 33
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
