"""Files and folders in whose place anything may stand; trees of any depth; what writers left."""

import errno
import os
import shutil
import stat
import time

import pytest
from hostile import make_deep

from s4s_core import lock
from s4s_core.atomic import sweep_folder, write_atomic
from s4s_core.lock import Lock, holder
from s4s_core.regular import is_file, make_folder, open_regular, read_whole, remove_tree

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such entries")
OTHERS = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


def test_a_tree_of_any_depth_is_removed(tmp_path):
    make_deep(tmp_path / "deep", 3000)
    with pytest.raises((RecursionError, OSError)):
        shutil.rmtree(tmp_path / "deep")
    remove_tree(tmp_path / "deep")
    assert not list(tmp_path.iterdir())


def test_a_tree_of_anything_is_removed_and_what_its_links_lead_to_stays(tmp_path):
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine / "a" / "d", mine / "b" / "d", other):
        folder.mkdir(parents=True)
        (folder / "file").write_text("kept")
    (mine / "a" / "link").symlink_to(other)
    (mine / "broken").symlink_to("nowhere")
    os.mkfifo(mine / "b" / "pipe")
    os.mknod(mine / "b" / "socket", stat.S_IFSOCK | 0o600)
    remove_tree(mine)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    mine.symlink_to(other)
    remove_tree(mine)
    os.mkfifo(mine)
    remove_tree(mine)
    remove_tree(mine)  # there is nothing
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert (other / "file").read_text() == "kept"


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_what_is_no_file_is_neither_read_nor_replaced(tmp_path, make):
    path = tmp_path / "file"
    assert not is_file(path) and not is_file(path / "below")
    make(path)
    before = path.lstat()
    for use in (is_file, lambda p: write_atomic(p, b"data"), lambda p: read_whole(p, 9)):
        with pytest.raises(OSError):
            use(path)
    assert path.lstat().st_mode == before.st_mode and len(list(tmp_path.iterdir())) == 1


def test_a_tree_is_removed_although_its_folders_cannot_be_renamed(tmp_path, monkeypatch):
    """As on Windows while a file in them is open."""

    def refuse(*_):
        raise PermissionError(errno.EACCES, "in use")

    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "b" / "file").touch()
    monkeypatch.setattr(os, "rename", refuse)
    remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_a_junction_of_windows_is_not_followed(tmp_path, monkeypatch):
    """It is a folder to every question but one; here a folder answers that one like a junction."""
    lstat, junction = os.lstat, tmp_path / "tree" / "junction"
    junction.mkdir(parents=True)
    (junction / "file of somebody else").touch()
    inode = lstat(junction).st_ino

    class Junction:
        st_mode, st_reparse_tag = lstat(junction).st_mode, 0xA0000003

    monkeypatch.setattr(
        os, "lstat", lambda path: Junction if lstat(path).st_ino == inode else lstat(path)
    )
    remove_tree(tmp_path / "tree")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [
        "file of somebody else"
    ]


def test_a_folder_is_made_where_nothing_else_stands(tmp_path):
    make_folder(tmp_path / "new")
    make_folder(tmp_path / "new")
    (tmp_path / "link").symlink_to("new")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(FileExistsError):
            make_folder(tmp_path / name)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE])
def test_a_lock_that_cannot_be_opened_may_be_held(tmp_path, monkeypatch, code):
    """Else the folder of a living panel of another user would be removed."""
    Lock(tmp_path / "lock").take()

    def refuse(*_):
        raise OSError(code, "refused")

    monkeypatch.setattr(lock, "open_regular", refuse)
    assert holder(tmp_path / "lock") == 0


def test_a_lock_that_cannot_be_written_is_seen_through(tmp_path, monkeypatch):
    """What another user's process left, or holds."""

    def refuse_writing(path, flags):
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EACCES, "refused")
        return open_regular(path, flags)

    with Lock(tmp_path / "lock") as held:
        held.take()
        monkeypatch.setattr(lock, "open_regular", refuse_writing)
        assert holder(tmp_path / "lock") == os.getpid()
    assert holder(tmp_path / "lock") is None


def test_only_old_leftovers_are_swept_where_others_write(tmp_path):
    for name in (".s4s-old.tmp", ".s4s-new.tmp", "mine.tmp", ".s4s-mine"):
        (tmp_path / name).touch()
    os.utime(tmp_path / ".s4s-old.tmp", (0, time.time() - 100_000))
    sweep_folder(tmp_path, 86_400)
    assert {path.name for path in tmp_path.iterdir()} == {".s4s-new.tmp", "mine.tmp", ".s4s-mine"}
    sweep_folder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.tmp", ".s4s-mine"}
