"""Hostile text and pictures in valid solver files, hostile entries of a folder, forged names."""

import base64
import math
import os
import stat
import struct
import zlib
from pathlib import Path

EVIL = '"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
FORGED_NAMES = ["../../etc/passwd", "/etc/passwd", "", None, 5, "nothing", ["a"], "..", "a\0b"]
"""Values that a browser may send instead of a listed name."""

ESCAPES = "\x1b[2J\r\nSHA-256: forged\0\u202e\u200b"


def bomb(side=20_000):
    """Return a PNG of a few kilobytes that unpacks to `side` x `side` pixels, as a data URI."""

    def chunk(kind, data):
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    rows = zlib.compress(bytes((1 + side // 8) * side), 9)
    magic = b"\x89PNG\r\n\x1a\n"
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", rows), chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(magic + b''.join(parts)).decode()}"


def _everywhere(text):
    """Return metadata with a text in every place that takes one."""
    words = {key: text for key in ("name", "author", "licence", "notes")}
    model = {key: text for key in ("name", "hash", "comfy", "architecture", "prediction")}
    scores = {"5": {"rmse": 1.0, "classical": 2.0, "classical_name": text}}
    about = {"name": text, "solver": text, "schedule": text, "nfe": text}
    return words | {"model": model, "scores": scores, "teacher": about, "training": {"calls": text}}


HOSTILE = {
    "text for numbers": _everywhere("many"),
    "numbers for text": {"model": {"name": 7, "hash": 5.5}, "teacher": {"name": 1, "nfe": 1e300}},
    "objects for text": {
        "model": {"name": {}, "hash": [], "architecture": {"a": [1]}},
        "teacher": {"name": [], "nfe": {"a": 1}},
        "training": {"calls": [1, 2]},
        "scores": {"5": [], "6": None, "4": {"rmse": {}, "classical": True}},
    },
    "nothing for text": {"model": {"name": None}, "training": {"calls": None}},
    "numbers out of range": {
        "cfg": [0, 999_999],
        "resolution": [0, 0.5],
        "training": {"calls": -1e308},
        "scores": {"5": {"rmse": -1.0, "classical": 0}, "4": {"rmse": 1e308, "classical": 1e-308}},
    },
    "HTML": _everywhere(EVIL),
    "escapes": _everywhere(ESCAPES),
    "huge text": {"name": "x" * 10_000, "notes": "y" * 100_000, "model": {"name": "z" * 10_000}},
    "a bomb": {"thumbnail": bomb()},
    "half a picture": {"thumbnail": "data:image/png;base64,A"},
    "another kind of picture": {"thumbnail": "data:image/jpeg;base64,PHNjcmlwdD4="},
}
"""Metadata by what is wrong with it."""

UNSHOWABLE = [b"\xff\xfe", b"half a letter \xc3", b"\xed\xa0\x80"]
UNSHOWABLE += [
    f"{mark} in a name".encode()
    for mark in "\n\r\t\x1b\x07\x7f\x85\x9b\u2028\u2029\u202a\u202e\u2066\u2069"
]
"""Names that no list can show, as bytes."""

ODD = ["<img src=x onerror=alert(1)>", "%s %n {0} {x}", "'; --", "a..", "-rf", " ", "None", "#?&="]
ODD += [
    "\N{IDEOGRAPHIC SPACE}",
    "e\N{COMBINING ACUTE ACCENT}",
    "\U0001f469\u200d\U0001f680",
    "x" * 200,
]
"""Names that a list must show."""


def make_deep(folder, levels):
    """Make a tree that no path reaches, with a file in each level."""
    folder.mkdir()
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.close(os.open("file", os.O_CREAT, dir_fd=here))
        os.mkdir("d", dir_fd=here)
        here, above = os.open("d", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)


def fill_with_hostile_entries(folder, data):
    """Put entries of every kind into a folder; `data` is that of a solver file.

    Return the names of those that can be listed, and how many cannot.
    """
    base = os.fsencode(folder)
    for name in UNSHOWABLE:
        os.mkdir(base + b"/" + name)
        for path in (name + b".safetensors", name + b"/inside.safetensors"):
            Path(os.fsdecode(base + b"/" + path)).write_bytes(data)
    links = {"nowhere": "nothing", "itself": "itself.safetensors", "device": "/dev/zero"}
    links |= {"one": "two.safetensors", "two": "one.safetensors", "here": "."}
    for name, target in links.items():
        (folder / f"{name}.safetensors").symlink_to(target)
    (folder / "circle").symlink_to("..")
    os.mknod(folder / "pipe.safetensors", stat.S_IFIFO | 0o600)
    os.mknod(folder / "socket.safetensors", stat.S_IFSOCK | 0o600)
    deep = f"{'d/' * 100}deep"
    (folder / deep).parent.mkdir(parents=True)
    for name in (*ODD, deep):
        (folder / f"{name}.safetensors").write_bytes(data)
    return {f"{name}.safetensors" for name in (*ODD, deep)}, 2 * len(UNSHOWABLE) + len(links) + 3


ODD_VALUES = [
    *(None, -1, 10**400, 10**5000, math.inf, math.nan, True, [], [[1]], {}, {"a": 1}, "", "x"),
    *("\x1b[2J", "\ud800", "9" * 5000, "~nosuchuser/x", "1e400", [10**400], [None], b"x", 1e308),
]
"""Values of any type that a forged request may send."""
