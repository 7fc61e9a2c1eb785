"""Where solvers and jobs are kept, what starts the trainer, and what a solver says of itself."""

import errno
import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import pytest
import torch
from hostile import ODD_VALUES, fill_with_hostile_entries
from hypothesis import example, given
from hypothesis import strategies as st

from s4s_core import SolverPack, classical_table, save_solver
from s4s_core.app import folders
from s4s_core.app.description import describe, describe_table
from s4s_core.app.folders import publish
from s4s_core.app.processes import trainer_command
from s4s_core.errors import SolverFileError
from s4s_core.solver_file import load_unchanged

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("S4S_HOME", str(tmp_path))
    monkeypatch.delenv("S4S_SOLVERS", raising=False)
    monkeypatch.setattr(folders, "_registered", [])
    return tmp_path


def a_pack(**about):
    nodes = torch.tensor([10.0, 3.0, 1.0, 0.0], dtype=torch.float64)
    return SolverPack.of(classical_table("ipndm", nodes, 2, "ve"), metadata=about)


def put(folder, file, **about):
    path = Path(folder) / file
    path.parent.mkdir(parents=True, exist_ok=True)
    save_solver(path, a_pack(**about))
    return path


def test_the_platform_names_the_home(monkeypatch, tmp_path):
    monkeypatch.delenv("S4S_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert folders.data_home() == tmp_path / "s4s"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert folders.jobs_home() == tmp_path / "local" / "s4s" / "jobs"


def test_solvers_are_sought_beside_the_host_then_where_it_or_the_user_says(home, monkeypatch):
    assert folders.solver_folders() == [home / "solvers"]
    for host in ("custom_nodes", "extensions"):
        monkeypatch.setattr(folders, "CHECKOUT", home / "app" / host / "s4s")
        models = home / "app" / "models" / "s4s_solvers"
        assert folders.solver_folders() == [models, home / "solvers"]
    folders.register_solver_folders([home / "a"])
    assert folders.solver_folders() == [home / "a", home / "solvers"]
    monkeypatch.setenv("S4S_SOLVERS", os.pathsep.join([str(home / "b"), str(home / "c")]))
    assert folders.solver_folders() == [home / "b", home / "c"]
    for nothing in ("", os.pathsep, 2 * os.pathsep):
        monkeypatch.setenv("S4S_SOLVERS", nothing)
        assert folders.solver_folders() == [home / "a", home / "solvers"]


def test_files_are_listed_by_relative_name_and_the_first_folder_wins(home):
    folders.register_solver_folders([home / "a"])
    first, _ = put(home / "a", "x.safetensors"), put(home / "solvers", "x.safetensors")
    deep = put(home / "solvers", "sd/y.safetensors")
    (home / "a" / "note.txt").write_text("no solver")
    loud = put(home / "solvers", "Z.SAFETENSORS")
    listed = {"Z.SAFETENSORS": loud, "sd/y.safetensors": deep, "x.safetensors": first}
    assert folders.solver_files() == listed
    assert folders.find_solver("sd/y.safetensors") == deep


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/etc/passwd", "", "\0", "X" * 9999, *ODD_VALUES],
    ids=lambda name: type(name).__name__,
)
def test_names_outside_the_listing_are_refused(home, name, monkeypatch):
    """And values that are no names; the message can be shown, whatever the folder is called."""
    put(home, "x.safetensors")
    monkeypatch.setenv("S4S_HOME", os.fsdecode(b"caf\xe9"))
    with pytest.raises(SolverFileError, match="There is no solver file") as caught:
        folders.find_solver(name)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


LINKS = {
    **{"passwd.safetensors": "/etc/passwd", "zero.safetensors": "/dev/zero"},
    **{"itself.safetensors": "itself.safetensors", "nowhere.safetensors": "nowhere"},
    **{"one.safetensors": "two.safetensors", "two.safetensors": "one.safetensors"},
    **{"loop": ".", "above": ".."},
}


@pytest.fixture
def linked(home):
    """A solvers' folder with one solver among links that lead elsewhere, nowhere and in circles."""
    put(home / "solvers", "good.safetensors", name="good")
    put(home, "outside.safetensors")
    for name, target in LINKS.items():
        try:
            (home / "solvers" / name).symlink_to(target)
        except OSError:
            pytest.skip("links cannot be made here")
    return home / "solvers"


def test_links_in_the_solvers_folder_are_harmless(linked):
    """None is followed into a folder; what leads to a foreign file is refused in a sentence."""
    names = set(folders.solver_files())
    assert "good.safetensors" in names
    assert names <= {"good.safetensors", "passwd.safetensors"}
    for name in names - {"good.safetensors"}:
        with pytest.raises(SolverFileError, match="cannot be used") as caught:
            load_unchanged(folders.find_solver(name))
        assert "root:" not in str(caught.value)
    for name in ("zero.safetensors", "itself.safetensors", "one.safetensors"):
        with pytest.raises(SolverFileError):
            load_unchanged(linked / name)


def test_what_cannot_be_listed_is_named_and_the_rest_is_listed(home):
    good = put(home / "solvers", "good.safetensors")
    listed, bad = fill_with_hostile_entries(good.parent, good.read_bytes())
    found = folders.list_solvers()
    assert set(found.files) == listed | {"good.safetensors"} and len(found.faults) == bad
    for name, fault in found.faults.items():
        assert fault.endswith(".") and fault.isprintable()
        assert name.encode() and not set(name) & set("\n\r\x1b\u202e"), name
    assert all(load_unchanged(path) == a_pack() for path in found.files.values())
    assert publish(b"new", "itself").name == "itself-2.safetensors"


class Unreachable:
    """An entry of a folder that may be read but not searched, where the system tells no types."""

    name = "unreachable.safetensors"

    def is_dir(self):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_folders_that_cannot_be_read_or_searched_or_vanish_hide_no_other(home, monkeypatch):
    """Simulated, because nothing is forbidden to root."""
    scandir = os.scandir
    for name in ("closed", "dark", "gone", "open"):
        put(home / "solvers" / name, "x.safetensors")

    def guarded(path):
        name = Path(path).name
        if name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied")
        if name == "gone":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return nullcontext([Unreachable()]) if name == "dark" else scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    found = folders.list_solvers()
    assert list(found.files) == ["open/x.safetensors"]
    denied = ["closed/", "dark/unreachable.safetensors"]
    assert found.faults == dict.fromkeys(denied, "Permission denied.")


def test_lists_are_bounded_and_say_so(home, monkeypatch):
    for number in range(5):
        put(home / "solvers", f"{number}.safetensors")
        (home / "solvers" / f"broken {number}.safetensors").symlink_to("nothing")
    monkeypatch.setattr(folders, "MAX_LISTED", 2)
    monkeypatch.setattr(folders, "MAX_FAULTS", 3)
    found = folders.list_solvers()
    assert list(found.files) == ["0.safetensors", "1.safetensors"] and len(found.faults) == 5
    assert found.faults["..."].startswith("2 more") and "2 of 5" in found.faults["*.safetensors"]


def test_links_in_the_solvers_folder_hinder_no_new_file(linked):
    before = {path.name for path in linked.iterdir()}
    for stem in ("itself", "nowhere", "one", "passwd"):
        path = publish(stem.encode(), stem)
        assert path.name == f"{stem}-2.safetensors" and path.read_text() == stem
        path.unlink()
    assert {path.name for path in linked.iterdir()} == before


def test_the_panel_shows_no_foreign_file(linked):
    seen = {}
    solvers_tab = pytest.importorskip("trainer.panel.solvers")
    if "passwd.safetensors" in folders.solver_files():
        shown = solvers_tab.refresh(seen, "passwd.safetensors", None)
        assert "cannot be used" in shown[2] and shown[3] == "" and "root:" not in str(shown)
        solvers_tab.delete("passwd.safetensors")
        assert not (linked / "passwd.safetensors").is_symlink() and Path("/etc/passwd").exists()


def test_names_of_new_files_are_safe_and_numbered(home):
    safe = {
        "a/b: c?": "a-b- c",
        "..": "solver",
        "NUL": "NUL_",
        "com1.x": "com1_.x",
        "LPT0": "LPT0_",
    }
    for title, name in safe.items():
        assert next(folders.names_for(home, title)).name == f"{name}.safetensors"
    found = [path.name for path in islice(folders.names_for(home, "x"), 3)]
    assert found == ["x.safetensors", "x-2.safetensors", "x-3.safetensors"]


@given(st.text(max_size=300))
@example("\U0001d4b3" * 80)
@example(f"con{' ' * 90}x")
@example(f"NUL.{'x' * 90}")
@example("\ud800")
def test_any_title_gives_a_stem_that_fits(title):
    """255 bytes are enough for the stem, a number and a suffix; the rules are Windows' too."""
    stem = folders.safe_stem(title)
    assert stem and folders.safe_stem(stem) == stem == stem.strip(" .")
    assert len(f"{stem}-1000000.safetensors.run".encode()) <= 255
    assert not re.match(r"(con|prn|aux|nul|(com|lpt)[0-9¹²³]) *(\.|$)", stem, re.IGNORECASE)


@pytest.mark.parametrize("code", [errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL])
def test_a_result_whose_name_is_refused_gets_a_plain_one(home, monkeypatch, code):
    """As on file systems with shorter names or fewer letters."""
    link, opened = os.link, os.open

    def refusing(call):
        def guarded(*arguments, **options):
            if any("wide" in str(path) for path in arguments):
                raise OSError(code, os.strerror(code))
            return call(*arguments, **options)

        return guarded

    monkeypatch.setattr(os, "link", refusing(link))
    monkeypatch.setattr(os, "open", refusing(opened))
    names = [publish(data, "wide").name for data in (b"one", b"two", b"one")]
    assert names == ["solver.safetensors", "solver-2.safetensors", "solver.safetensors"]
    assert len(os.listdir(home / "solvers")) == 2


def test_a_file_is_read_again_only_when_it_changed(home):
    path = put(home, "x.safetensors", name="one")
    before = path.stat()
    assert load_unchanged(path) is load_unchanged(path)
    other = put(home, "y.safetensors", name="two")  # of the same time and size
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)
    assert path.stat().st_size == before.st_size and path.stat().st_mtime_ns == before.st_mtime_ns
    assert load_unchanged(path).metadata["name"] == "two"
    path.unlink()
    with pytest.raises(SolverFileError, match="cannot be read"):
        load_unchanged(path)


def test_the_trainer_starts_where_neither_path_nor_folder_help(tmp_path):
    """-I ignores PYTHONPATH, the user's packages and the working folder, as embedded Pythons do."""
    python, *rest = trainer_command("--version")
    done = subprocess.run([python, "-I", *rest], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("s4s "), done.stderr


def test_listing_and_reading_solvers_needs_no_torch(home):
    put(home / "solvers", "x.safetensors")
    code = (
        "import sys; from s4s_core.app.folders import solver_files; "
        "from s4s_core.solver_file import load_unchanged; "
        "from s4s_core.app.description import describe; "
        "print([describe(load_unchanged(p)).plain()['nfes'] for p in solver_files().values()]); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[[3]]", done.stderr


def test_a_summary_is_plain_bounded_data():
    scores = {"3": {"rmse": 0.1, "classical": 0.4, "classical_name": "n" * 999, "odd": [1]}}
    pack = a_pack(name="x" * 1000, scores=scores, cfg=[1, 2], model={"hash": {"deep": 1}})
    found = json.loads(json.dumps(describe(pack).plain()))
    assert found["ratios"] == {"3": pytest.approx(0.25)} and found["cfg"] == [1, 2]
    assert len(found["name"]) == 300 and len(found["scores"]["3"]["classical_name"]) == 300
    assert "odd" not in found["scores"]["3"] and found["model"] == {}
    for scores in ({}, {"3": {"rmse": 1e300, "classical": 1e-300}}):
        assert describe(a_pack(scores=scores)).plain()["ratios"] == {"3": None}
    found = json.loads(json.dumps(describe_table(a_pack(), 3)))
    assert found["sigmas"] == [10.0, 3.0, 1.0, 0.0] and found["nfe"] == 3
    assert found["coefficients"]["b"][0] == [1.0, 0.0]
