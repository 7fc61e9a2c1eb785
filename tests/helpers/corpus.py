"""Malformed solver files, each with a name and a part of the message it must get; and mutants.

Everything starts from the bytes of golden/format1.safetensors, not from our writer. A fault of
None leaves the wording to the safetensors library.
"""

import base64
import copy
import json
import struct
import zipfile
import zlib
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

GOLDEN = Path(__file__).parents[1] / "golden" / "format1.safetensors"
NAN, INFINITY = float("nan"), float("inf")


class Malformed(NamedTuple):
    """A file that must be refused, for the reason given."""

    name: str
    data: bytes
    fault: str | None


class Draft:
    """A solver file taken apart: header, the `s4s` statement in it, and the tensors' bytes."""

    def __init__(self, data=None):
        data = GOLDEN.read_bytes() if data is None else data
        end = 8 + struct.unpack("<Q", data[:8])[0]
        self.header, self.blob = json.loads(data[8:end]), bytearray(data[end:])
        self.statement = json.loads(self.header["__metadata__"]["s4s"])

    def text(self):
        """The header as JSON, with the statement in its place."""
        metadata = self.header["__metadata__"] | {"s4s": json.dumps(self.statement)}
        return json.dumps(self.header | {"__metadata__": metadata})

    def put(self, tensor, index, value):
        """Overwrite one number of a tensor."""
        at = self.header[tensor]["data_offsets"][0] + 8 * index
        self.blob[at : at + 8] = struct.pack("<d", value)


def assemble(header, blob):
    """A file of a header (text or bytes) and the tensors' bytes."""
    header = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(header)) + header + bytes(blob)


def _foreign_files():
    """Bytes that were never a solver file."""
    good = GOLDEN.read_bytes()
    short, cut = "too short", "cut off or too large"
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("solver/data.pkl", b"\x80\x02.")
    yield "empty", b"", short
    yield "seven-bytes", good[:7], short
    yield "only-a-length", good[:8], cut
    yield "half-a-header", good[:400], cut
    yield "no-tensors-at-all", good[: len(good) - len(Draft().blob)], None
    yield "one-byte-less", good[:-1], None
    yield "one-number-less", good[:-8], None
    yield "one-byte-more", good + b"\0", None
    yield "a-megabyte-more", good + bytes(1 << 20), "larger than 1 MB"
    yield "doubled", good + good, None
    yield "zeros", bytes(4096), "not valid JSON"
    yield "ones", b"\xff" * 4096, cut
    yield "without-its-length", good[8:], cut
    yield "pickle", b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x05posix\x94\x8c\x06system\x94\x93.", cut
    yield "small-pickle", b"\x80\x02}q\0.", short
    yield "zip", archive.getvalue(), cut
    yield "png", b"\x89PNG\r\n\x1a\n" + bytes(64), cut
    yield "html", b"<!DOCTYPE html><html><title>404 Not Found</title></html>", cut
    yield "git-lfs-pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", cut
    yield "gguf", b"GGUF\x03\0\0\0" + bytes(64), cut
    yield "elf", b"\x7fELF\x02\x01\x01" + bytes(64), cut


def _broken_headers():
    """Files whose header is no header."""
    draft = Draft()
    text, blob = draft.text(), draft.blob
    length = len(text.encode())
    for name, number in {
        "zero": 0,
        "one": 1,
        "one-short": length - 1,
        "one-long": length + 1,
        "past-the-end": 8 + length + len(blob),
        "four-gigabytes": 1 << 32,
        "2-to-the-63": 1 << 63,
        "2-to-the-64": (1 << 64) - 1,
    }.items():
        yield f"length-{name}", struct.pack("<Q", number) + text.encode() + blob, None
    for name, header, fault in (
        ("not-utf8", text.encode().replace(b"nfe3/b", b"nfe3/\xff"), "utf-8"),
        ("utf16", text.encode("utf-16"), "utf-8"),
        ("byte-order-mark", b"\xef\xbb\xbf" + text.encode(), "not valid JSON"),
        ("not-json", "x" * 64, "not valid JSON"),
        ("python", str(draft.header), "not valid JSON"),
        ("blank", " " * 64, "not valid JSON"),
        ("list", "[]", "not an object"),
        ("number", "12345678", "not an object"),
        ("null", "null", "not an object"),
        ("empty-object", "{}", "not an S4S solver"),
        ("two-objects", text + text, "not valid JSON"),
        ("unclosed", text[:-1], "not valid JSON"),
        ("padded-with-nul", text + "\0" * 8, "not valid JSON"),
        ("deep-brackets", "[" * 100_000, "nested too deeply"),
        ("deep-objects", '{"a":' * 40_000, "nested too deeply"),
        ("too-large", " " * (300 << 10) + text, cut := "cut off or too large"),
        ("too-large-text", json.dumps({"__metadata__": {"s4s": "x" * (300 << 10)}}), cut),
        ("long-number", '{"a":' + "9" * 100_000 + "}", None),
        ("nan", text[:-1] + ', "x": NaN}', "contains NaN"),
        ("infinity", text[:-1] + ', "x": -Infinity}', "contains -Infinity"),
        ("overflow", text[:-1] + ', "x": 1e999}', None),
        ("same-tensor-twice", text[:-1] + ', "nfe3/b"' + text.split('"nfe3/b"')[1], "twice"),
        ("same-metadata-twice", text[:-1] + ', "__metadata__": {}}', "twice"),
        ("same-key-in-metadata", text.replace('"s4s":', '"s4s": "{}", "s4s":'), "twice"),
        ("same-key-in-tensor", text.replace('"dtype":', '"dtype": "F64", "dtype":', 1), "twice"),
    ):
        yield f"header-{name}", assemble(header, blob), fault


def _wrong_tensors():
    """Good JSON that describes tensors which are not those of a solver."""

    def edited(edit):
        draft = Draft()
        edit(draft.header)
        return assemble(draft.text(), draft.blob)

    def field(tensor, key, value):
        return edited(lambda header: header[tensor].update({key: value}))

    b, a, sigmas = "nfe3/b", "nfe4/a", "nfe3/sigmas"
    first, last = Draft().header[b]["data_offsets"]
    for kind in (
        "F32",
        "F16",
        "I64",
        "U8",
        "BOOL",
        "F8_E5M2",
        "f64",
        "F64\n\x1b[31m",
        "",
        None,
        64,
    ):
        yield f"dtype-{str(kind).split()[0] if kind else kind!r}", field(b, "dtype", kind), None
    yield "dtype-i64-of-the-same-size", field(b, "dtype", "I64"), "has no place in a solver"
    for name, shape in {
        "transposed": [2, 3],
        "flat": [6],
        "scalar": [],
        "zero-size": [0, 2],
        "negative": [-3, -2],
        "2-to-the-63": [1 << 63, 2],
        "overflow": [1 << 62, 1 << 62],
        "floats": [3.0, 2.0],
        "text": "3,2",
        "null": None,
        "bools": [True, True],
        "many": [1] * 5000 + [3, 2],
    }.items():
        yield f"shape-{name}", field(b, "shape", shape), None
    for name, span in {
        "negative": [-8, last],
        "reversed": [last, first],
        "past-the-end": [first, 1 << 62],
        "2-to-the-64": [first, 1 << 64],
        "overlap": [0, last - first],
        "hole": [first + 8, last + 8],
        "short": [first, last - 8],
        "floats": [float(first), float(last)],
        "one": [first],
        "three": [first, last, last],
        "text": "0,48",
        "null": None,
    }.items():
        yield f"offsets-{name}", field(b, "data_offsets", span), None
    yield "tensor-is-a-list", edited(lambda h: h.update({b: [1, 2]})), None
    yield "tensor-is-null", edited(lambda h: h.update({b: None})), None
    yield "tensor-without-shape", edited(lambda h: h[b].pop("shape")), None
    place = "has no place in a solver"
    for name in (
        "nfe3/B",
        "nfe03/b",
        "nfe0/b",
        "b",
        "nfe3/b/c",
        "../b",
        "nfe3/b\n\x1b[2J",
        "nfe99999/b",
        "nfe3/" + "b" * 100_000,
        "",
        "nfe٣/b",
    ):
        label = name.encode("unicode_escape").decode()[:16].replace("/", "-").replace("\\", "")
        yield (
            f"tensor-called-{label or 'nothing'}",
            edited(lambda h, n=name: h.update({n: h.pop(b)})),
            place,
        )
    yield "tensor-unknown", edited(lambda h: h.update({"nfe3/c": h.pop(b)})), "holds exactly"
    yield (
        "tensor-of-another-family",
        edited(lambda h: h.update({"nfe3/a": h.pop(b)})),
        "holds exactly",
    )
    yield (
        "tensor-of-another-nfe",
        edited(lambda h: h.update({"nfe7/b": h.pop(b)})),
        "different NFEs",
    )
    yield "tensors-swapped", edited(lambda h: h.update({b: h[a], a: h[b]})), "shape"
    yield (
        "sigmas-and-calls-swapped",
        edited(lambda h: h.update({sigmas: h["nfe3/call_sigmas"], "nfe3/call_sigmas": h[sigmas]})),
        "",
    )
    extra = {"dtype": "F64", "shape": [0], "data_offsets": [0, 0]}
    yield "tensor-extra", edited(lambda h: h.update({"nfe3/c": extra})), "holds exactly"
    yield "nfe-not-described", edited(lambda h: h.update({"nfe7/b": extra})), "different NFEs"
    for part in ("sigmas", "call_sigmas", "b", "a"):
        draft = Draft()
        start, end = draft.header.pop(f"nfe4/{part}")["data_offsets"]
        del draft.blob[start:end]
        for entry in draft.header.values():
            if entry.get("data_offsets", [0])[0] >= end:
                entry["data_offsets"] = [at - (end - start) for at in entry["data_offsets"]]
        yield f"tensor-missing-{part}", assemble(draft.text(), draft.blob), ""
    yield (
        "no-tensor-described",
        assemble(json.dumps({"__metadata__": Draft().header["__metadata__"]}), b""),
        "different NFEs",
    )


def _wrong_metadata():
    """Headers whose `__metadata__` is not that of a solver."""
    none = "not an S4S solver"

    def edited(edit):
        draft = Draft()
        metadata = draft.header["__metadata__"]
        draft.header["__metadata__"] = edit(metadata)
        return assemble(json.dumps(draft.header), draft.blob)

    def s4s(text):
        return edited(lambda m: m | {"s4s": text})

    text = Draft().header["__metadata__"]["s4s"]
    yield "metadata-missing", edited(lambda m: {}), none
    yield "metadata-null", edited(lambda m: None), none
    yield "metadata-a-list", edited(lambda m: [m]), none
    yield "metadata-with-a-number", edited(lambda m: m | {"modelspec.title": 5}), None
    yield "metadata-with-an-object", edited(lambda m: m | {"modelspec.title": {}}), None
    yield "metadata-of-a-lora", edited(lambda m: {"ss_network_dim": "16"}), none
    for name, value in {"null": None, "object": {}, "number": 1}.items():
        yield f"s4s-{name}", s4s(value), none
    for name, value, fault in (
        ("empty", "", "not valid JSON"),
        ("not-json", "hello", "not valid JSON"),
        ("a-list", "[]", "no format number"),
        ("cut", text[:-1], "not valid JSON"),
        ("deep", "[" * 100_000, "nested too deeply"),
        (
            "deep-about",
            text.replace('"about":{', '"about":{"x":' + "[" * 50 + "]" * 50 + ","),
            "nested too deeply",
        ),
        ("nan", text.replace('"format":1', '"format":NaN'), "contains NaN"),
        ("nan-in-about", text.replace('"about":{', '"about":{"x":NaN,'), "contains NaN"),
        ("infinity-in-about", text.replace('"about":{', '"about":{"x":Infinity,'), "contains Inf"),
        ("overflow-in-about", text.replace('"about":{', '"about":{"x":1e999,'), "not finite"),
        ("format-twice", text.replace('"format":1', '"format":1,"format":1'), "twice"),
        ("about-key-twice", text.replace('"about":{', '"about":{"x":1,"x":1,'), "twice"),
        ("nfe-twice", text.replace('"3":{', '"3":{},"3":{'), "twice"),
        ("surrogate-value", text.replace('"about":{', '"about":{"x":"\\ud800",'), "surrogate"),
        ("surrogate-key", text.replace('"about":{', '"about":{"\\ud800":1,'), "surrogate"),
        ("long-number", text.replace('"about":{', '"about":{"x":' + "9" * 50_000 + ","), None),
    ):
        yield f"s4s-{name}", s4s(value), fault


def _wrong_statements():
    """Files whose `s4s` object is at odds with the format or with the tensors."""

    def edited(edit):
        draft = Draft()
        edit(draft.statement)
        return assemble(draft.text(), draft.blob)

    def entry(key, value):
        return edited(lambda s: s.update({key: value}))

    def table(key, value):
        return edited(lambda s: s["tables"]["3"].update({key: value}))

    def about(key, value):
        return edited(lambda s: s["about"].update({key: value}))

    number = "no format number"
    for value, fault in (
        (2, "format 2, this version reads format 1"),
        (0, "format 0"),
        (-1, "format -1"),
        ("1", number),
        (True, number),
        (1.0, number),
        (None, number),
        (int("9" * 4000), "format 9"),
    ):
        yield f"format-{type(value).__name__}-{str(value)[:9]}", entry("format", value), fault
    for key in ("format", "space", "tables", "about", "sha256"):
        yield f"statement-without-{key}", edited(lambda s, k=key: s.pop(k)), ""
        yield f"statement-{key}-null", entry(key, None), ""
    yield "statement-with-more", entry("extra", 1), "must hold format"
    yield "hash-wrong", entry("sha256", "0" * 64), "do not match its hash"
    yield "hash-empty", entry("sha256", ""), "do not match its hash"
    yield "hash-upper-case", edited(lambda s: s.update(sha256=s["sha256"].upper())), "its hash"
    yield "space-unknown", entry("space", "vp"), "Unknown space 'vp'"
    yield "space-changed", entry("space", "flow"), ""
    yield "space-hostile", entry("space", "\x1b[2J\r\n" * 5000), "Unknown space"
    for name, tables, fault in (
        ("empty", {}, "different NFEs"),
        ("another", {"5": {}}, "different NFEs"),
        ("padded", {"03": {}}, "different NFEs"),
    ):
        yield f"tables-{name}", entry("tables", tables), fault
    yield "nfe-missing", edited(lambda s: s["tables"].pop("3")), "different NFEs"
    yield (
        "nfe-extra",
        edited(lambda s: s["tables"].update({"9": s["tables"]["3"]})),
        "different NFEs",
    )
    yield "nfe-a-list", edited(lambda s: s["tables"].update({"3": []})), "NFE 3 is incomplete"
    yield "table-with-more", table("extra", 1), "NFE 3 is incomplete"
    for key in ("family", "order", "form", "ending"):
        yield f"table-without-{key}", edited(lambda s, k=key: s["tables"]["3"].pop(k)), "incomplete"
    wrong = "has a wrong type"
    for key, value, fault in (
        ("family", "rk", "Unknown family 'rk'"),
        ("family", "pc", "holds exactly"),
        ("family", "ss", ""),
        ("family", "LMS", "Unknown family"),
        ("family", 1, wrong),
        ("family", ["lms"], wrong),
        ("family", "\x1b]0;owned\x07\n" * 9000, "Unknown family"),
        ("order", 0, "order must be"),
        ("order", -1, "order must be"),
        ("order", 65, "order must be"),
        ("order", 10**30, "order must be"),
        ("order", 3, "shape"),
        ("order", True, wrong),
        ("order", 2.0, wrong),
        ("order", "2", wrong),
        ("order", None, wrong),
        ("form", "velocity", "no form 'velocity'"),
        ("form", "data", "hash"),
        ("form", "", "no form"),
        ("form", None, wrong),
        ("form", "\u2028\n" * 9000, "no form"),
        ("ending", 0.5, "contradict"),
        ("ending", -1e-300, "contradict"),
        ("ending", None, wrong),
        ("ending", False, wrong),
        ("ending", "0", wrong),
        ("ending", [0.0], wrong),
    ):
        label = str(value).encode("unicode_escape").decode()[:10].replace("\\", "")
        yield f"{key}-{type(value).__name__}-{label}", table(key, value), fault
    for key, value, fault in (
        ("name", 5, "not text"),
        ("name", None, "not text"),
        ("notes", ["x"], "not text"),
        ("notes", "x" * 100_001, "overlong"),
        ("k" * 100_001, 1, "overlong"),
        ("model", "sd15", "not an object"),
        ("scores", [], "not an object"),
        ("training", 3, "not an object"),
        ("cfg", 7.5, "pair of numbers"),
        ("cfg", [1], "pair of numbers"),
        ("cfg", ["1", "2"], "pair of numbers"),
        ("cfg", [True, False], "pair of numbers"),
        ("resolution", [512, -512], "pair of numbers"),
        ("resolution", [10**9, 1], "pair of numbers"),
        ("cfg", {"0": 1, "1": 2}, "pair of numbers"),
        ("scores", {"3": {"rmse": 10**400, "classical": 3}}, "more than 64 bits"),
        ("added", [-(2**64)], "more than 64 bits"),
        ("thumbnail", "https://example.org/spy.png", "thumbnail"),
        ("thumbnail", "", "thumbnail"),
        ("thumbnail", "data:image/svg+xml;base64,PHN2Zz4=", "thumbnail"),
        ("thumbnail", "data:text/html;base64,PGI+", "thumbnail"),
        ("thumbnail", "data:image/png;base64,AAAA\n", "thumbnail"),
        ("thumbnail", 'data:image/png;base64,AA"onerror=alert(1)', "thumbnail"),
        ("added", 1, "hash"),
        ("name", "Another", "hash"),
    ):
        yield f"about-{key[:9]}-{str(value)[:28].replace('/', '-')!r}", about(key, value), fault


def _wrong_numbers():
    """Tensors with values that no solver has; the hash is wrong too, but validity comes first."""
    positive = "call_sigmas must be positive"
    for name, tensor, index, value, fault in (
        ("sigma-nan", "nfe3/sigmas", 1, NAN, "not finite"),
        ("sigma-infinite", "nfe3/sigmas", 0, INFINITY, "not finite"),
        ("sigma-rising", "nfe3/sigmas", 2, 50.0, "strictly decreasing"),
        ("sigma-repeated", "nfe3/sigmas", 1, 80.0, "strictly decreasing"),
        ("sigma-negative", "nfe3/sigmas", 3, -1.0, "must not be negative"),
        ("ending-moved", "nfe3/sigmas", 3, 1e-9, "contradict"),
        ("call-zero", "nfe3/call_sigmas", 2, 0.0, positive),
        ("call-minus-zero", "nfe3/call_sigmas", 2, -0.0, positive),
        ("call-negative", "nfe3/call_sigmas", 1, -2.0, positive),
        ("call-nan", "nfe3/call_sigmas", 0, NAN, "not finite"),
        ("weight-nan", "nfe3/b", 0, NAN, "not finite"),
        ("weight-infinite", "nfe3/b", 3, -INFINITY, "not finite"),
        ("weight-before-the-first-call", "nfe3/b", 1, 1e-300, "does not exist"),
        ("corrector-before-the-first-call", "nfe2/a", 2, 1.0, "does not exist"),
        ("stage-of-itself", "nfe4/a", 3, 1.0, "does not exist"),
        ("stage-of-a-later-one", "nfe4/a", 1, 1.0, "does not exist"),
        ("stage-missing-at-the-end", "nfe5/b", 5, 1.0, "does not exist"),
        ("weight-changed", "nfe3/b", 0, 1.0 + 2**-52, "do not match its hash"),
        ("weight-minus-zero", "nfe3/b", 1, -0.0, "do not match its hash"),
    ):
        draft = Draft()
        draft.put(tensor, index, value)
        yield f"number-{name}", assemble(draft.text(), draft.blob), fault


def malformed():
    """Every file of the corpus."""
    groups = (
        _foreign_files,
        _broken_headers,
        _wrong_tensors,
        _wrong_metadata,
        _wrong_statements,
        _wrong_numbers,
    )
    return [Malformed(*case) for group in groups for case in group()]


TYPICAL = {
    "from-the-future": ("format-int-2", "format 2, this version reads format 1"),
    "unknown-family": ("family-str-rk", "Unknown family"),
    "another-family": ("family-str-pc", "holds exactly"),
    "bad-utf8": ("header-not-utf8", "utf-8"),
    "huge-text": ("about-notes-'xxxxxxxxxxxxxxxxxxxxxxxxxxxx'", "overlong"),
    "hostile-text": ("family-str-x1b]0;own", "Unknown family"),
    "deep-json": ("header-deep-brackets", "nested too deeply"),
    "claims-gigabytes": ("length-four-gigabytes", "too large"),
    "claims-a-huge-tensor": ("shape-2-to-the-63", ""),
    "too-large": ("a-megabyte-more", "1 MB"),
    "zip": ("zip", "cut off or too large"),
    "pickle": ("pickle", "cut off or too large"),
}


def typical():
    """One file of every kind that people may meet; the fault is what every place must show."""
    files = {case.name: case.data for case in malformed()}
    return [Malformed(kind, files[name], fault) for kind, (name, fault) in TYPICAL.items()]


def picture_bomb():
    """The data URI of a PNG of some 40 bytes that claims to be a picture of 14 GB."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 6, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk
    data += struct.pack(">I", zlib.crc32(chunk))
    return "data:image/png;base64," + base64.b64encode(data).decode()


# Mutants -----------------------------------------------------------------------------------------

_ODD_VALUES = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    1 << 31,
    1 << 63,
    1e308,
    0.5,
    "",
    "1",
    "lms",
    "pc",
    "ss",
    "noise",
    "data",
    "ve",
    "flow",
    "F64",
    "\0",
    [],
    {},
    [0],
    [1, 2],
    {"x": 1},
    "x" * 1000,
)


def _nodes(value, found):
    """Every (container, key) inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        found.append((value, key))
        if isinstance(item, dict | list):
            _nodes(item, found)
    return found


def _edit_json(random, value):
    """Replace, remove, copy, swap or rename something inside a JSON object, in place."""
    nodes = _nodes(value, [])
    (where, key), (other, name) = random.choice(nodes), random.choice(nodes)
    action = random.randrange(6)
    if action == 0:
        where[key] = copy.deepcopy(random.choice(_ODD_VALUES))
    elif action == 1:
        del where[key]
    elif action == 2:
        where[key] = copy.deepcopy(other[name])
    elif action == 3:
        where[key], other[name] = copy.deepcopy(other[name]), copy.deepcopy(where[key])
    elif action == 4 and isinstance(where, dict):
        where[str(name)] = where.pop(key)
    elif isinstance(where[key], int | float):
        where[key] += random.choice((-8, -1, 1, 8, 0.5, 1e-16))


def _by_json(random, data):
    draft = Draft(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        target = draft.statement if random.random() < 0.5 else draft.header
        if target:
            _edit_json(random, target)
    try:
        text = draft.text()
    except (KeyError, TypeError):  # the edit removed the place of the statement
        text = json.dumps(draft.header)
    return assemble(text, draft.blob)


def _by_bytes(random, data):
    data = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        at, action = random.randrange(len(data)), random.randrange(7)
        size = random.choice((1, 1, 2, 8, 40))
        if action <= 1:
            data[at] ^= 1 << random.randrange(8)
        elif action == 2:
            data[at] = random.randrange(256)
        elif action == 3:
            data[at:at] = random.randbytes(size)
        elif action == 4 and len(data) > 2 * size:
            del data[at : at + size]
        elif action == 5:
            other = random.randrange(len(data))
            here, there = data[at : at + size], data[other : other + size]
            if len(here) == len(there) and abs(at - other) >= size:
                data[at : at + size], data[other : other + size] = there, here
        else:
            data[at : at + size] = random.choice((b"\0", b"\xff", b" ", b'"', b"9")) * size
    return bytes(data)


def mutant(random, data):
    """`data` damaged in one of many ways; now and then only in spelling."""
    return (_by_json if random.random() < 0.4 else _by_bytes)(random, data)
