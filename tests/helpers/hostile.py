"""Hostile text and pictures in valid solver files, and names that a browser may forge."""

import base64
import struct
import zlib

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
