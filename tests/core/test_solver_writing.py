"""Solver files on disk: paths that cannot be read or written, atomic writes, faults, leftovers."""

import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest
from corpus import GOLDEN

from s4s_core import atomic
from s4s_core.errors import SolverFileError
from s4s_core.solver_file import dump_solver, load_solver, save_solver
from s4s_core.table import SolverPack, SolverTable

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def small_pack(weight=1.0):
    return SolverPack.of(SolverTable("lms", 1, "noise", "ve", [8.0, 0.0], [8.0], {"b": [[weight]]}))


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.safetensors"


def refusal(path):
    with pytest.raises(SolverFileError) as caught:
        load_solver(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and message.endswith(".") and "\x1b" not in message
    return message


def test_what_cannot_be_read_is_refused_in_one_line(path):
    assert refusal(path) == f"{path}: cannot be read: No such file or directory."
    assert "Is a directory" in refusal(path.parent)
    assert "cannot be read: embedded null byte" in refusal("a\0b.safetensors")
    assert "cannot be read" in refusal(path.parent / "a\n\x1b[31mb.safetensors")
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
        assert "it is a pipe" in refusal(path)


def test_an_empty_file_is_not_opened(path, monkeypatch):
    """The files in /proc are empty too, and reading one may wait for ever."""
    path.touch()
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("the file was opened"))
    assert "it is too short" in refusal(path)


@pytest.mark.parametrize(
    "name, fault",
    [
        *((n, "must end in .safetensors") for n in ("a.ckpt", "a", "a.safetensors.bak")),
        (".safetensors", "must end in .safetensors"),
        ("a\0b.safetensors", "cannot be written"),
        ("folder.safetensors", "cannot be written"),
        ("no/a.safetensors", "the folder .* does not exist"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(tmp_path, name, fault):
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(SolverFileError, match=fault):
        save_solver(tmp_path / name, small_pack())
    assert names(tmp_path) == ["folder.safetensors"]


def test_the_suffix_may_have_any_case(tmp_path):
    save_solver(tmp_path / "A.SafeTensors", small_pack())
    assert load_solver(str(tmp_path / "A.SafeTensors")) == small_pack()


@pytest.mark.parametrize("windows", [True, False])
def test_an_open_file_is_replaced_as_soon_as_possible(monkeypatch, tmp_path, windows):
    """Windows cannot replace an open file, and panels read states that workers write."""
    path, replace, refusals = tmp_path / "state.json", os.replace, [1, 2, 3]

    def busy(*places):
        if refusals:
            raise PermissionError(13, f"Access is denied ({refusals.pop()})")
        replace(*places)

    monkeypatch.setattr(atomic, "WINDOWS", windows)
    monkeypatch.setattr(atomic, "PATIENCE", 600)
    monkeypatch.setattr(atomic.os, "replace", busy)
    if windows:
        atomic.write_atomic(path, b"new")
        assert path.read_bytes() == b"new" and not refusals
        refusals.append(4)
        monkeypatch.setattr(atomic, "PATIENCE", -1)
    with pytest.raises(PermissionError):
        atomic.write_atomic(path, b"newer")
    assert [p.name for p in tmp_path.iterdir()] == ([path.name] if windows else [])


@pytest.mark.parametrize("old", [None, b"old contents"])
@pytest.mark.parametrize("place", ["fsync", "replace", "fdopen", "open"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_everything_as_it_was(path, monkeypatch, place, old, error):
    if old:
        path.write_bytes(old)
    before = names(path.parent)

    def fail(*args, **options):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, place, fail)
        full = isinstance(error, OSError)
        expected = SolverFileError if full else KeyboardInterrupt
        message = "a.safetensors: cannot be written: No space left" if full else None
        with pytest.raises(expected, match=message):
            save_solver(path, small_pack())
    assert names(path.parent) == before
    assert not old or path.read_bytes() == old


def test_a_write_is_synced_before_and_after_the_file_is_replaced(path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            atomic.os, name, lambda *a, n=name, r=real: (calls.append((n, path.exists())), r(*a))[1]
        )
    save_solver(path, small_pack())
    folder = [("fsync", True)] if os.name != "nt" else []
    assert calls == [("fsync", False), ("replace", False), *folder]


def test_a_folder_that_cannot_be_synced_is_no_error(path, monkeypatch):
    real = os.fsync

    def fsync(handle):
        if path.exists():
            raise OSError(22, "Invalid argument")
        real(handle)

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    save_solver(path, small_pack())
    assert load_solver(path) == small_pack()


@pytest.mark.skipif(os.name == "nt", reason="modes are Unix")
def test_new_files_follow_the_umask_and_old_ones_keep_their_mode(path):
    mask = os.umask(0o027)
    try:
        save_solver(path, small_pack())
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o604)
        save_solver(path, small_pack(2.0))
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o604 and load_solver(path) == small_pack(2.0)


def test_a_new_file_takes_the_first_free_name(tmp_path):
    paths = [tmp_path / f"{name}.safetensors" for name in "abc"]
    assert atomic.write_new(paths, b"one") == paths[0]
    paths[1].mkdir()
    assert atomic.write_new(paths, b"two") == paths[2]
    assert paths[0].read_bytes() == b"one" and paths[2].read_bytes() == b"two"
    with pytest.raises(FileExistsError, match="every name is taken"):
        atomic.write_new(paths, b"three")
    assert len(names(tmp_path)) == 3


def in_child(work, *arguments):
    """Run a function in a forked process; an exception there fails the test."""
    child = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    child.start()
    child.join(60)
    assert child.exitcode == 0


def _fill_the_disk(folder):
    import resource

    path, pack = Path(folder) / "a.safetensors", load_solver(GOLDEN)
    save_solver(path, small_pack())
    old, size = path.read_bytes(), len(dump_solver(pack))
    for limit in {*range(0, size, size // 63), size - 1}:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with pytest.raises(SolverFileError, match="File too large"):
            save_solver(path, pack)
        assert path.read_bytes() == old and names(folder) == ["a.safetensors"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    save_solver(path, pack)
    assert path.read_bytes() == GOLDEN.read_bytes() and names(folder) == ["a.safetensors"]


@needs_fork
def test_a_full_disk_at_64_places(tmp_path):
    in_child(_fill_the_disk, tmp_path)


def _without_rights(folder):
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    path, secret = Path(folder) / "a.safetensors", Path(folder) / "secret.safetensors"
    old = path.read_bytes()
    for target in (path, Path(folder) / "new.safetensors"):
        with pytest.raises(SolverFileError, match="cannot be written: Permission denied"):
            save_solver(target, small_pack())
    assert refusal(secret) == f"{secret}: cannot be read: Permission denied."
    assert path.read_bytes() == old


@needs_fork
def test_a_read_only_folder_and_an_unreadable_file():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        for name in ("a", "secret"):
            Path(folder, f"{name}.safetensors").write_bytes(GOLDEN.read_bytes())
        Path(folder, "a.safetensors").chmod(0o644)
        Path(folder, "secret.safetensors").chmod(0)
        os.chmod(folder, 0o555)
        try:
            in_child(_without_rights, folder)
            assert names(folder) == ["a.safetensors", "secret.safetensors"]
        finally:
            os.chmod(folder, 0o755)


def killed_write(path, monkeypatch):
    """Leave what a process leaves that dies between writing and replacing."""
    monkeypatch.setattr(atomic.os, "replace", lambda *a: (_ for _ in ()).throw(OSError(5, "I/O")))
    monkeypatch.setattr(Path, "unlink", lambda *a, **k: None)  # as if killed before cleaning up
    with pytest.raises(SolverFileError):
        save_solver(path, small_pack())
    monkeypatch.undo()


def test_a_sweep_removes_what_a_killed_write_of_that_file_left(tmp_path, monkeypatch):
    for name in ("a.safetensors", "b.safetensors", "a.safetensors"):
        killed_write(tmp_path / name, monkeypatch)
    kept = (".s4s-1234.tmp", "c.safetensors", ".s4s-x", "x.tmp")
    for name in kept:
        (tmp_path / name).write_bytes(b"x")
    assert len(names(tmp_path)) == 7
    atomic.sweep(tmp_path / "a.safetensors")
    assert len(names(tmp_path)) == 5 and set(kept) < set(names(tmp_path))
    atomic.sweep(tmp_path / "b.safetensors")
    assert names(tmp_path) == sorted(kept)
    atomic.sweep(tmp_path / "missing" / "a.safetensors")
