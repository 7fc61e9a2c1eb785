"""A corpus of malformed solver files, each with part of its error message.

All of them start from the bytes of golden/format1.safetensors, not from our writer. A message of ""
leaves the wording to the safetensors library.
"""

import base64
import json
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import reduce
from io import BytesIO
from operator import getitem
from pathlib import Path
from typing import Any, NamedTuple

GOLDEN = Path(__file__).parents[1] / "golden" / "format1.safetensors"
GOLDEN_2 = GOLDEN.with_name("format2.safetensors")
NAN, INFINITY = float("nan"), float("inf")
TRUNCATED, NOT_JSON, DEEP = "truncated or too large", "not valid JSON", "nested too deeply"
Case = tuple[object, bytes, str]
"""What the file is, its bytes, and part of the message."""


class Malformed(NamedTuple):
    """A file that must be refused with a message that contains `fault`."""

    name: str
    data: bytes
    fault: str


def contents(pack: Any) -> tuple[object, ...]:
    """Everything that a pack holds, without trusting its digest."""
    tables = []
    for nfe, table in sorted(pack.tables.items()):
        arrays = {name: (array.shape, array.tobytes()) for name, array in table.arrays.items()}
        tables.append((nfe, table.family, table.order, table.form, table.space, arrays))
    return tables, json.dumps(dict(pack.metadata), sort_keys=True), pack.digest


def canonical(value: object) -> str:
    """Return canonical JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


class Draft:
    """A solver file taken apart: its header, the manifest in it, and the bytes of the tensors."""

    def __init__(self, data: bytes | None = None) -> None:
        data = GOLDEN.read_bytes() if data is None else data
        end = 8 + struct.unpack("<Q", data[:8])[0]
        self.header, self.blob = json.loads(data[8:end]), bytearray(data[end:])
        self.manifest = json.loads(self.header["__metadata__"]["s4s"])

    def text(self) -> str:
        """Return the header as JSON of another spelling, with the canonical manifest in it."""
        metadata = self.header["__metadata__"] | {"s4s": canonical(self.manifest)}
        return json.dumps(self.header | {"__metadata__": metadata})

    def put(self, tensor: str, index: int, value: float) -> None:
        """Overwrite one number of a tensor."""
        at = self.header[tensor]["data_offsets"][0] + 8 * index
        self.blob[at : at + 8] = struct.pack("<d", value)


def assemble(header: str | bytes, blob: bytes | bytearray) -> bytes:
    """Join a header and the bytes of the tensors to a file."""
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header)) + header + bytes(blob)


def edited(edit: Callable[[Draft], object]) -> bytes:
    """Return the golden file after an edit of its draft."""
    draft = Draft()
    edit(draft)
    return assemble(draft.text(), draft.blob)


def tensor_field(key: str, value: object) -> bytes:
    return edited(lambda draft: draft.header["nfe3/b"].update({key: value}))


def manifest_field(*place: object) -> bytes:
    """Return the golden file with another value, the last argument, at a place in its manifest."""
    *keys, last, value = place

    def edit(draft: Draft) -> None:
        reduce(getitem, keys, draft.manifest)[last] = value

    return edited(edit)


def table_field(key: str, value: object) -> bytes:
    return manifest_field("tables", "3", key, value)


def about_field(key: str, value: object) -> bytes:
    return manifest_field("about", key, value)


def with_tensors(tensors: dict[str, object], without: tuple[str, ...] = ()) -> bytes:
    """Return the golden file with other tensors in its header, and without some."""
    draft = Draft()
    kept = {name: entry for name, entry in draft.header.items() if name not in without}
    draft.header = kept | tensors
    return assemble(draft.text(), draft.blob)


def with_guidance(number: int, values: tuple[float, ...]) -> bytes:
    """Return the golden file with multipliers for 3 calls, in the format of that number."""
    draft, data = Draft(), struct.pack(f"<{len(values)}d", *values)
    place = [len(draft.blob), len(draft.blob) + len(data)]
    entry = {"dtype": "F64", "shape": [len(values)], "data_offsets": place}
    draft.header["nfe3/guidance"], draft.manifest["format"] = entry, number
    return assemble(draft.text(), draft.blob + data)


def with_metadata(metadata: object) -> bytes:
    """Return the golden file with another `__metadata__`."""
    return assemble(json.dumps(Draft().header | {"__metadata__": metadata}), Draft().blob)


def _foreign_files() -> Iterator[Case]:
    """Bytes that were never a solver file, and golden ones cut or extended."""
    good, archive = GOLDEN.read_bytes(), BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("solver/data.pkl", b"\x80\x02.")
    pickle = b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93."
    for data in (b"", good[:7], b"\x80\x02}q\0."):
        yield f"{len(data)} bytes", data, "too short"
    yield "a megabyte more", good + bytes(1 << 20), "larger than 1 MB"
    yield "zeros", bytes(4096), NOT_JSON
    for name, data in {
        "only a length": good[:8],
        "half a header": good[:400],
        "ones": b"\xff" * 4096,
        "no length": good[8:],
        "pickle": pickle,
        "zip": archive.getvalue(),
        "png": b"\x89PNG\r\n\x1a\n" + bytes(64),
        "html": b"<!DOCTYPE html><html><title>404 Not Found</title></html>",
        "git lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
        "gguf": b"GGUF\x03\0\0\0" + bytes(64),
        "elf": b"\x7fELF\x02\x01\x01" + bytes(64),
    }.items():
        yield name, data, TRUNCATED
    no_tensors = good[: len(good) - len(Draft().blob)]
    for data in (no_tensors, good[:-1], good[:-8], good + b"\0", good + good):
        yield f"{len(data)} of {len(good)} bytes", data, ""


def _broken_headers() -> Iterator[Case]:
    """Files with an unreadable header."""
    draft = Draft()
    text, blob = draft.text(), draft.blob
    length = len(text.encode())
    lengths = 0, 1, length - 1, length + 1, 8 + length + len(blob), 1 << 32, 1 << 63, (1 << 64) - 1
    for number in lengths:
        yield f"length {number}", struct.pack("<Q", number) + text.encode() + blob, ""
    for fault, headers in {
        "utf-8": [text.encode().replace(b"nfe3/b", b"nfe3/\xff"), text.encode("utf-16")],
        NOT_JSON: [
            *(b"\xef\xbb\xbf" + text.encode(), "x" * 64, str(draft.header), " " * 64),
            *(text + text, text[:-1], text + "\0" * 8),
        ],
        "not an object": ["[]", "12345678", "null"],
        "not an S4S solver": ["{}"],
        DEEP: ["[" * 100_000, '{"a":' * 40_000],
        TRUNCATED: [" " * (300 << 10) + text, '{"__metadata__": "' + "x" * (300 << 10) + '"}'],
        "contains NaN": [text[:-1] + ', "x": NaN}'],
        "contains -Infinity": [text[:-1] + ', "x": -Infinity}'],
        "": ['{"a":' + "9" * 100_000 + "}", text[:-1] + ', "x": 1e999}'],
        "duplicate key": [
            text[:-1] + ', "nfe3/b"' + text.split('"nfe3/b"')[1],
            text[:-1] + ', "__metadata__": {}}',
            text.replace('"s4s":', '"s4s": "{}", "s4s":'),
            text.replace('"dtype":', '"dtype": "F64", "dtype":', 1),
        ],
    }.items():
        for header in headers:
            yield f"header {header[:9]!r}", assemble(header, blob), fault


def _wrong_tensors() -> Iterator[Case]:
    """Good JSON that describes tensors which do not belong in a solver."""
    b, calls, sigmas = "nfe3/b", "nfe3/call_sigmas", "nfe3/sigmas"
    first, last = Draft().header[b]["data_offsets"]
    foreign, exactly, other_nfes = "does not belong in a solver file", "exactly", "different NFEs"
    yield "dtype of the same size", tensor_field("dtype", "I64"), foreign
    fields = {
        "dtype": [*("F32", "F16", "U8", "BOOL", "F8_E5M2", "f64", "F64\n\x1b[31m", "", None, 64)],
        "shape": [
            *([2, 3], [6], [], [0, 2], [-3, -2], [1 << 63, 2], [1 << 62, 1 << 62], [3.0, 2.0]),
            *("3,2", None, [True, True], [1] * 5000 + [3, 2]),
        ],
        "data_offsets": [
            *([-8, last], [last, first], [first, 1 << 62], [first, 1 << 64], [0, last - first]),
            *([first + 8, last + 8], [first, last - 8], [float(first), float(last)], [first]),
            *([first, last, last], "0,48", None),
        ],
    }
    for key, values in fields.items():
        for value in values:
            yield f"{key} {value!r}", tensor_field(key, value), ""
    entries = Draft().header
    names = {
        foreign: [
            *("nfe3/B", "nfe03/b", "nfe0/b", "b", "nfe3/b/c", "../b", "nfe3/b\n\x1b[2J"),
            *("nfe99999/b", "nfe3/" + "b" * 100_000, "", "nfe٣/b"),
        ],
        exactly: ["nfe3/c", "nfe3/a"],
        other_nfes: ["nfe7/b"],
    }
    for fault, some in names.items():
        for name in some:
            yield f"tensor called {name!r}", with_tensors({name: entries[b]}, (b,)), fault
    extra = {"dtype": "F64", "shape": [0], "data_offsets": [0, 0]}
    for name, fault in {"nfe3/c": exactly, "nfe7/b": other_nfes}.items():
        yield f"extra tensor {name}", with_tensors({name: extra}), fault
    for value in ([1, 2], None, {key: entries[b][key] for key in ("dtype", "data_offsets")}):
        yield f"tensor is {value}", with_tensors({b: value}), ""
    for one, other, fault in ((b, "nfe4/a", "shape"), (sigmas, calls, "")):
        swapped = {one: entries[other], other: entries[one]}
        yield f"{one} and {other} swapped", with_tensors(swapped), fault
    for part in ("sigmas", "call_sigmas", "b", "a"):
        yield f"missing {part}", _without_tensor(f"nfe4/{part}"), ""
    empty = json.dumps({"__metadata__": Draft().header["__metadata__"]})
    yield "no tensor at all", assemble(empty, b""), other_nfes


def _without_tensor(name: str) -> bytes:
    """Return the golden file without a tensor, offsets adjusted."""
    draft = Draft()
    start, end = draft.header.pop(name)["data_offsets"]
    del draft.blob[start:end]
    for entry in draft.header.values():
        if entry.get("data_offsets", [0])[0] >= end:
            entry["data_offsets"] = [at - (end - start) for at in entry["data_offsets"]]
    return assemble(draft.text(), draft.blob)


def _wrong_metadata() -> Iterator[Case]:
    """Files whose `__metadata__` is not that of a solver."""
    for wrong in ({}, None, [{}], {"ss_network_dim": "16"}, {"s4s": None}, {"s4s": {}}, {"s4s": 1}):
        yield f"metadata {wrong}", with_metadata(wrong), "not an S4S solver"
    metadata = Draft().header["__metadata__"]
    text = metadata["s4s"]
    for title in (5, {}):
        yield f"title {title}", with_metadata(metadata | {"modelspec.title": title}), ""

    def about(start: str) -> str:
        return text.replace('"about":{', '"about":{' + start)

    for fault, manifests in {
        NOT_JSON: ["", "hello", text[:-1]],
        "no format number": ["[]"],
        DEEP: ["[" * 100_000, about('"x":' + "[" * 50 + "]" * 50 + ",")],
        "contains NaN": [text.replace('"format":1', '"format":NaN'), about('"x":NaN,')],
        "contains Inf": [about('"x":Infinity,')],
        "not finite": [about('"x":1e999,')],
        "duplicate key": [
            text.replace('"format":1', '"format":1,"format":1'),
            about('"x":1,"x":1,'),
            text.replace('"3":{', '"3":{},"3":{'),
        ],
        "surrogate": [about('"x":"\\ud800",'), about('"\\ud800":1,')],
        "": [about('"x":' + "9" * 50_000 + ",")],
    }.items():
        for value in manifests:
            yield f"manifest {value[:20]!r}", with_metadata(metadata | {"s4s": value}), fault


HOSTILE = "\x1b]0;owned\x07\n" * 9000
_WRONG_TYPE, _ORDER, _NO_FORM = "a value of the wrong type", "order must be", "no form"
_TABLE_VALUES: dict[str, dict[str, list[object]]] = {
    "family": {
        "Unknown family": ["rk", "LMS", HOSTILE],
        "exactly": ["pc"],
        "": ["ss"],
        _WRONG_TYPE: [1, ["lms"]],
    },
    "order": {
        _ORDER: [0, -1, 65, 10**30],
        "shape": [3],
        _WRONG_TYPE: [True, 2.0, "2", None],
    },
    "form": {_NO_FORM: ["velocity", "", "\u2028\n" * 9000], "hash": ["data"], _WRONG_TYPE: [None]},
    "ending": {"contradict": [0.5, -1e-300], _WRONG_TYPE: [None, False, "0", [0.0]]},
}
_ABOUT_VALUES: dict[str, list[tuple[str, object]]] = {
    "not text": [("name", 5), ("name", None), ("notes", ["x"])],
    "more than 100000 characters": [("notes", "x" * 100_001), ("k" * 100_001, 1)],
    "not an object": [("model", "sd15"), ("scores", []), ("training", 3)],
    "pair of numbers": [
        *(("cfg", v) for v in (7.5, [1], ["1", "2"], [True, False], {"0": 1, "1": 2})),
        *(("resolution", v) for v in ([512, -512], [10**9, 1])),
    ],
    "more than 64 bits": [("scores", {"3": {"rmse": 10**400}}), ("added", [-(2**64)])],
    "thumbnail": [
        *(("thumbnail", v) for v in ("", "https://example.org/spy.png")),
        *(
            ("thumbnail", f"data:{v}")
            for v in ("image/svg+xml;base64,PHN2Zz4=", "text/html;base64,PGI+")
        ),
        *(("thumbnail", f"data:image/png;base64,{v}") for v in ("AAAA\n", 'AA"onerror=alert(1)')),
    ],
    "hash": [("added", 1), ("name", "Another")],
}


def _wrong_manifests() -> Iterator[Case]:
    """Files whose manifest contradicts the format or the tensors."""
    for value in (3, 0, -1, int("9" * 4000)):
        yield f"format {value}"[:20], manifest_field("format", value), f"format {value}"[:15]
    other = "its format number contradicts its tensors"
    yield "format 2 without guidance", manifest_field("format", 2), other
    yield "format 1 with guidance", with_guidance(1, (1.0, 0.5, 0.0)), other
    yield "a stranger's guidance", with_guidance(2, (1.0, 0.5, 0.0)), "do not match its hash"
    for fault, values in {
        "guidance must be >= 0": (1.0, -1e-300, 1.0),
        "guidance must be finite": (1.0, NAN, 1.0),
        "guidance must have shape (3,), not (2,)": (1.0, 1.0),
    }.items():
        yield f"guidance {values}", with_guidance(2, values), fault
    for value in ("1", True, 1.0):
        yield f"format {value!r}", manifest_field("format", value), "no format number"
    for key in ("format", "space", "tables", "about", "sha256"):
        data = edited(lambda draft, key=key: draft.manifest.pop(key))
        yield f"no {key}", data, "'s4s' entry"
        yield f"{key} null", manifest_field(key, None), "'s4s' entry"
    yield "extra entry", manifest_field("extra", 1), "must contain exactly format"
    for digest in ("0" * 64, "", Draft().manifest["sha256"].upper()):
        yield f"hash {digest[:9]}", manifest_field("sha256", digest), "do not match its hash"
    for space in ("vp", "\x1b[2J\r\n" * 5000):
        yield f"space {space!r}", manifest_field("space", space), "Unknown space"
    yield "another space", manifest_field("space", "flow"), ""
    tables = Draft().manifest["tables"]
    for other in ({}, {"5": {}}, {"03": {}}, {**tables, "9": tables["3"]}, {"3": tables["3"]}):
        yield f"tables {list(other)}", manifest_field("tables", other), "different NFEs"
    yield "table a list", manifest_field("tables", {**tables, "3": []}), "NFE 3 is incomplete"
    yield "table with more", table_field("extra", 1), "NFE 3 is incomplete"
    for key, faults in _TABLE_VALUES.items():
        data = edited(lambda draft, key=key: draft.manifest["tables"]["3"].pop(key))
        yield f"table without {key}", data, "incomplete"
        for fault, values in faults.items():
            for value in values:
                yield f"{key} {value!r}", table_field(key, value), fault
    for fault, pairs in _ABOUT_VALUES.items():
        for key, value in pairs:
            yield f"about {key[:9]} {str(value)[:40]!r}", about_field(key, value), fault


def _wrong_numbers() -> Iterator[Case]:
    """Tensors with invalid values; the hash is wrong too, but validity is checked first."""
    b, sigmas, calls = "nfe3/b", "nfe3/sigmas", "nfe3/call_sigmas"
    for fault, numbers in {
        "must be finite": [
            *((sigmas, 1, NAN), (sigmas, 0, INFINITY), (calls, 0, NAN)),
            *((b, 0, NAN), (b, 3, -INFINITY)),
        ],
        "strictly decreasing": [(sigmas, 2, 50.0), (sigmas, 1, 80.0)],
        "sigmas must be >= 0": [(sigmas, 3, -1.0)],
        "contradict": [(sigmas, 3, 1e-9)],
        "call_sigmas must be > 0": [(calls, 2, 0.0), (calls, 2, -0.0), (calls, 1, -2.0)],
        "does not exist": [
            *((b, 1, 1e-300), ("nfe2/a", 2, 1.0), ("nfe4/a", 3, 1.0), ("nfe4/a", 1, 1.0)),
            ("nfe5/b", 5, 1.0),
        ],
        "do not match its hash": [(b, 0, 1.0 + 2**-52), (b, 1, -0.0)],
    }.items():
        for number in numbers:
            yield number, edited(lambda draft, number=number: draft.put(*number)), fault


def _respelled(spell: Callable[[str], str]) -> bytes:
    """Return the golden file with its manifest in another spelling."""
    metadata = Draft().header["__metadata__"]
    return with_metadata(metadata | {"s4s": spell(metadata["s4s"])})


def _number(tensor: str, index: int, value: float) -> bytes:
    """Return the golden file with another number in a tensor."""
    return edited(lambda draft: draft.put(tensor, index, value))


def _deeper(levels: int) -> object:
    """Return a list nested so many levels deep."""
    return reduce(lambda inner, _: [inner], range(levels), 1)


def rules() -> list[tuple[str, bytes, str]]:
    """Return (words of docs/solver-files.md, a file that breaks this rule, part of the message)."""
    b, calls, sigmas, foreign = "nfe3/b", "nfe3/call_sigmas", "nfe3/sigmas", "does not belong"
    entries, exactly, keys = Draft().header, "exactly", "must contain exactly format"
    extra = {"dtype": "F64", "shape": [0], "data_offsets": [0, 0]}
    good, blob = GOLDEN.read_bytes(), Draft().blob
    long = edited(lambda draft: draft.header["__metadata__"].update({"x": "y" * (256 << 10)}))
    spelled = "MUST write `s4s` as canonical JSON"
    return [
        ("All tensors are `F64`", tensor_field("dtype", "I64"), foreign),
        ("finite, in row-major order", _number(b, 0, NAN), "must be finite"),
        ("k is the order, from 1 to 64", table_field("order", 65), "order must be"),
        ("nodes of the update, strictly decreasing", _number(sigmas, 1, 80.0), "decreasing"),
        ("the last one, 0 or more", _number(sigmas, 3, -1.0), "sigmas must be >= 0"),
        ("noise levels passed to the network, each above 0", _number(calls, 2, 0.0), "> 0"),
        ("multipliers of guidance, each 0 or more", with_guidance(2, (1, -1, 1)), ">= 0"),
        ("decimal without leading zeros", with_tensors({"nfe03/b": entries[b]}, (b,)), foreign),
        ("except `guidance` MUST be present", _without_tensor("nfe4/a"), exactly),
        ("and other tensors MUST NOT be", with_tensors({"nfe3/c": extra}), exactly),
        ("`ss` has k (steps - 1) < N <= k steps", table_field("family", "ss"), "cannot have"),
        ("evaluations that do not exist MUST be zero", _number(b, 1, 1e-300), "does not exist"),
        ("In the space `flow` no level exceeds 1", manifest_field("space", "flow"), "must be <= 1"),
        ("maps text to text", with_metadata(entries["__metadata__"] | {"x": 5}), ""),
        ("JSON object with exactly these keys", manifest_field("extra", 1), keys),
        ("integer 2 if any table has `guidance`", manifest_field("format", 2), "format number"),
        ("otherwise the integer 1", with_guidance(1, (1.0, 0.5, 0.0)), "format number"),
        ('`"ve"` or `"flow"`', manifest_field("space", "vp"), "Unknown space"),
        ("an object with exactly the keys `family`", table_field("extra", 1), "incomplete"),
        ("equal to the last sigma", table_field("ending", 0.5), "contradict"),
        ("also in the sign of a zero", table_field("ending", -0.0), "contradict"),
        ("64 lower-case", manifest_field("sha256", Draft().manifest["sha256"].upper()), "hash"),
        ("lists exactly the NFEs that have tensors", manifest_field("tables", {}), "NFEs"),
        ("has a duplicate key", _respelled(lambda t: t[:-1] + ',"format":1}'), "duplicate key"),
        ("no number is NaN", _respelled(lambda t: t.replace(":0.0", ":NaN", 1)), "contains NaN"),
        ("nested at most 8 levels deep", about_field("x", _deeper(8)), "too deeply"),
        ("at most 100,000 characters", about_field("x", "y" * 100_001), "characters"),
        ("no lone surrogates", about_field("x", "\ud800"), "surrogate"),
        ("at most 64 bits", about_field("x", 1 << 64), "64 bits"),
        ("`name`, `author`, `licence`, `notes` | text", about_field("notes", 5), "not text"),
        ("`teacher`, `training` | objects", about_field("teacher", 5), "not an object"),
        ("numbers from 0 to below 1e6", about_field("cfg", [0, 1e6]), "pair of numbers"),
        ("numbers in the same range", about_field("resolution", [-1, 1]), "pair of numbers"),
        ("data URI", about_field("thumbnail", "https://example.org/spy.png"), "data URI"),
        (spelled, _respelled(lambda text: text.replace(",", ", ", 1)), "not canonical"),
        (spelled, _respelled(lambda text: text.replace("Golden", "\\u0047olden")), "not canonical"),
        (spelled, _respelled(lambda text: text.replace(":0.0", ":0e0", 1)), "not canonical"),
        (spelled, _respelled(lambda t: '{"format":1,' + t[1:].replace(',"format":1', "")), "not c"),
        ("at most 256 KB", long, TRUNCATED),
        ("no gaps", _without_blob_end(), ""),
        ("nothing after them", good + b"\0", ""),
        ("of at most 1 MB", good + bytes(1 << 20), "larger than 1 MB"),
        ("contains no code", b"\x80\x02}q\0." + bytes(blob), TRUNCATED),
    ]


def _without_blob_end() -> bytes:
    """Return the golden file with eight bytes that belong to no tensor."""
    return assemble(Draft().text(), bytes(8) + Draft().blob)


def malformed() -> list[Malformed]:
    """Return every file of the corpus."""
    sources = (_foreign_files, _broken_headers, _wrong_tensors, _wrong_metadata)
    cases = [case for group in (*sources, _wrong_manifests, _wrong_numbers) for case in group()]
    return [
        Malformed(f"{number}-{''.join(c if c.isalnum() else '-' for c in str(name)[:30])}", *rest)
        for number, (name, *rest) in enumerate(cases)
    ]


def typical() -> list[Malformed]:
    """Return one file of every kind that people may meet; every front end must show its fault."""
    named = {name: data for name, data, _ in _foreign_files()}
    text, blob = Draft().text().encode(), Draft().blob
    cases = {
        "from the future": (manifest_field("format", 3), "format 3"),
        "unknown family": (table_field("family", "rk"), "Unknown family"),
        "another family": (table_field("family", "pc"), "exactly"),
        "bad utf8": (assemble(text.replace(b"nfe3/b", b"nfe3/\xff"), blob), "utf-8"),
        "huge text": (about_field("notes", "x" * 100_001), "more than 100000 characters"),
        "hostile text": (table_field("family", HOSTILE), "Unknown family"),
        "deep json": (assemble("[" * 100_000, blob), DEEP),
        "claims gigabytes": (struct.pack("<Q", 1 << 32) + text + blob, "too large"),
        "claims a huge tensor": (tensor_field("shape", [1 << 63, 2]), ""),
        "too large": (named["a megabyte more"], "1 MB"),
        "zip": (named["zip"], TRUNCATED),
        "pickle": (named["pickle"], TRUNCATED),
    }
    return [Malformed(name.replace(" ", "-"), *case) for name, case in cases.items()]


def picture_bomb() -> str:
    """Return the data URI of a PNG of about 40 bytes that claims to be an image of 14 GB."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 6, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk
    data += struct.pack(">I", zlib.crc32(chunk))
    return "data:image/png;base64," + base64.b64encode(data).decode()
