"""Solver files: round trips, reproducible bytes, the golden file, errors, atomic writes."""

import copy
import hashlib
import json
import multiprocessing
import os
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors import safe_open
from safetensors.numpy import load_file

from s4s_core import atomic
from s4s_core.errors import SolverFileError, TableError
from s4s_core.names import FORMS
from s4s_core.solver_file import (
    dump_solver,
    load_solver,
    merge_packs,
    save_new_solver,
    save_solver,
)
from s4s_core.table import FAMILIES, SolverPack, SolverTable, coefficient_masks

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parents[1] / "golden" / "format1.safetensors"
GOLDEN_SHA256 = "94abc15fa313f3ec7fd1e6e2e734b06931c5304690edf44d24199c00ecfc83b8"
GOLDEN_DIGEST = "ea1332465c9b92657eb204ff8b8d2d7200ebd90a355ae486e5a32a13c8786810"

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def lms(scale=1.0, nfe=3, space="ve"):
    """Return a small multistep table; `scale` changes its numbers."""
    top = 80.0 if space == "ve" else 0.9
    sigmas = [*(top * 4.0**-i for i in range(nfe)), 0.0]
    b = [[scale, 0.0], *([1.5 * scale, -0.5 * scale] for _ in range(nfe - 1))]
    return SolverTable("lms", 2, FORMS[space][0], space, sigmas, sigmas[:-1], {"b": b})


def golden_pack():
    """What tests/golden/format1.safetensors holds; written down once and never changed."""
    ss_calls = [80.0, 9.0, 1.0, 0.3]
    stage, none = [[0.0, 0.0], [1.0, 0.0]], np.zeros((2, 2))
    rows = [
        ("pc", 1, "data", [14.5, 0.0], [14.25], {"b": [[1.0]], "a": np.zeros((0, 2))}),
        (
            *("pc", 2, "data", [80.0, 1 / 3, 0.002], [79.0, 0.3]),
            {"b": [[1.0, 0.0], [1.25, -0.25]], "a": [[0.5, 0.5, 0.0]]},
        ),
        (
            *("lms", 2, "noise", [80.0, 7.1, 0.7, 0.0], [80.0, 6.9, 2 / 3]),
            {"b": [[1.01, 0.0], [1.49, -0.51], [1e-300, -1e300]]},
        ),
        (
            *("ss", 2, "noise", [80.0, 1.0, 0.1], ss_calls),
            {"b": [[0.0, 1.0], [0.1, 0.9]], "a": [stage, [[0.0, 0.0], [0.2 + 0.1, 0.0]]]},
        ),
        (
            *("ss", 2, "data", [80.0, 1.0, 0.1, 0.0], [*ss_calls, 0.1]),
            {
                "b": [[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]],
                "a": [stage, [[0.0, 0.0], [0.5, 0.0]], none],
            },
        ),
    ]
    tables = [SolverTable(*row[:3], "ve", *row[3:]) for row in rows]
    model = {"name": "Модель", "hash": "abc123", "architecture": "sd-v1", "prediction": "epsilon"}
    calls = {"method": "gauss-newton", "calls": 12345678901234567890, "tuned": True, "loss": None}
    about = {
        **{"name": "Golden ✨ solver", "author": "S4S", "licence": "MIT", "model": model},
        **{"cfg": [1, 7.5], "resolution": [512, 768], "training": calls},
        "scores": {"3": {"solver": 0.1, "ipndm": 0.30000000000000004}},
        "notes": '"quotes", \\backslash\\, \x1b[31m, \u2028, 🐈',
    }
    return SolverPack.of(*tables, metadata=about)


def numbers(pack):
    """All arrays of a pack, as bytes."""
    return {
        (nfe, name): (array.shape, array.tobytes())
        for nfe, table in pack.tables.items()
        for name, array in table.arrays.items()
    }


def same(one, other):
    """Whether two packs are equal, without trusting digests."""
    kinds = [
        {n: (t.family, t.order, t.form, t.space) for n, t in pack.tables.items()}
        for pack in (one, other)
    ]
    about = [json.dumps(dict(pack.metadata), sort_keys=True) for pack in (one, other)]
    return numbers(one) == numbers(other) and kinds[0] == kinds[1] and about[0] == about[1]


def floats(low, high, exclude_low=False):
    return st.floats(low, high, exclude_min=exclude_low, allow_subnormal=True)


@st.composite
def tables(draw, space):
    """Valid tables of every family and form, with any numbers that a table may hold."""
    family, form = draw(st.sampled_from(FAMILIES)), draw(st.sampled_from(FORMS[space]))
    order, steps = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    last = draw(st.integers(1, order)) if family == "ss" else 1
    nfe = order * (steps - 1) + last if family == "ss" else steps
    top = 1e300 if space == "ve" else (0.999 if form == "noise" else 1.0)
    levels = st.lists(floats(0.0, top), min_size=steps + 1, max_size=steps + 1, unique=True)
    sigmas = sorted(draw(levels), reverse=True)
    calls = draw(st.lists(floats(0.0, top, True), min_size=nfe, max_size=nfe))
    finite = st.floats(allow_nan=False, allow_infinity=False)
    coefficients = {
        name: np.where(mask, draw(arrays(np.float64, mask.shape, elements=finite)), 0.0)
        for name, mask in coefficient_masks(family, steps, order, nfe).items()
    }
    return SolverTable(family, order, form, space, sigmas, calls, coefficients)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
plain_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(1 - 2**64, 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def packs(draw):
    space = draw(st.sampled_from(sorted(FORMS)))
    about = draw(st.dictionaries(text.map("x-".__add__), plain_json, max_size=4))
    known = {
        **{"name": text, "author": text, "notes": text, "resolution": st.just([512, 768])},
        "cfg": st.tuples(st.integers(0, 9), floats(0, 99)).map(list),
        "model": st.dictionaries(st.sampled_from(["name", "hash", "prediction"]), plain_json),
        "thumbnail": st.just("data:image/png;base64,iVBORw0KGgo="),
    }
    about |= draw(st.fixed_dictionaries({}, optional=known))
    return SolverPack.of(*draw(st.lists(tables(space), min_size=1, max_size=3)), metadata=about)


def shuffled(value):
    """The same JSON value with every object's keys in the opposite order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


# Round trips -------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(pack=packs())
def test_round_trip_bit_for_bit(pack, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "round.safetensors"
    save_solver(path, pack)
    loaded = load_solver(path)
    assert same(loaded, pack) and loaded.digest == pack.digest
    assert loaded.tables == pack.tables and loaded.space == pack.space
    assert dump_solver(loaded) == path.read_bytes()
    other_order = SolverPack(dict(reversed(pack.tables.items())), shuffled(dict(pack.metadata)))
    assert dump_solver(other_order) == path.read_bytes()


def test_same_bytes_from_another_process():
    code = (
        "import sys, hashlib; sys.path[:0] = sys.argv[1:]; import test_solver_file as t;"
        "print(hashlib.sha256(t.dump_solver(t.golden_pack())).hexdigest())"
    )
    paths = [str(ROOT), str(ROOT / "tests" / "helpers"), str(Path(__file__).parent)]
    command = [sys.executable, "-c", code, *paths]
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "1"}
    out = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert out.stdout.strip() == GOLDEN_SHA256


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(pack=packs())
def test_the_safetensors_library_agrees(pack, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "library.safetensors"
    save_solver(path, pack)
    theirs = {name: (array.shape, array.tobytes()) for name, array in load_file(path).items()}
    assert theirs == {f"nfe{nfe}/{name}": value for (nfe, name), value in numbers(pack).items()}
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    assert json.loads(metadata["s4s"])["sha256"] == pack.digest


def test_golden_file_is_read():
    assert hashlib.sha256(GOLDEN.read_bytes()).hexdigest() == GOLDEN_SHA256
    pack = load_solver(GOLDEN)
    assert same(pack, golden_pack()) and pack.digest == GOLDEN_DIGEST
    assert pack.nfes == (1, 2, 3, 4, 5)
    with pytest.raises(ValueError):
        pack[3].sigmas[0] = 1.0


def test_golden_file_is_reproduced(tmp_path):
    for name, pack in (("fresh", golden_pack()), ("loaded", load_solver(GOLDEN))):
        save_solver(tmp_path / f"{name}.safetensors", pack)
        assert (tmp_path / f"{name}.safetensors").read_bytes() == GOLDEN.read_bytes()


def test_hash_rule_of_the_specification():
    """Compute the digest from the file alone, as docs/solver-files.md says."""
    data = GOLDEN.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    s4s = header["__metadata__"]["s4s"]
    statement, digests = json.loads(s4s), {}
    for nfe, about in statement["tables"].items():
        digest = hashlib.sha256(f"{about['family']} {about['order']} {about['form']} ve".encode())
        parts = [n.split("/")[1] for n in header if n.startswith(f"nfe{nfe}/")]
        for name in ("sigmas", "call_sigmas", *sorted({*parts} - {"sigmas", "call_sigmas"})):
            entry = header[f"nfe{nfe}/{name}"]
            shape = ", ".join(map(str, entry["shape"])) + ("," if len(entry["shape"]) == 1 else "")
            start, stop = entry["data_offsets"]
            digest.update(f" {name} ({shape}) ".encode() + data[end + start : end + stop])
        digests[nfe] = digest.hexdigest()
    about = s4s[len('{"about":') : s4s.index(',"format":1,"sha256":')]
    spelled = ",".join(f'"{nfe}":"{digests[nfe]}"' for nfe in sorted(digests))
    whole = f'{{"about":{about},"tables":{{{spelled}}}}}'
    assert hashlib.sha256(whole.encode()).hexdigest() == statement["sha256"] == GOLDEN_DIGEST


def test_the_worked_example_of_the_specification():
    """The blocks of docs/solver-files.md, joined, are the file that we write."""
    text = (ROOT / "docs/solver-files.md").read_text(encoding="utf-8")
    (_, length), (_, header), (_, tensors) = re.findall(r"```(hex|json)\n(.*?)```", text, re.S)
    header = header.replace("\n", "").encode() + b" " * 4
    data = bytes.fromhex(length) + header + bytes.fromhex(tensors)
    table = SolverTable("lms", 1, "noise", "ve", [80.0, 0.0], [79.5], {"b": [[1.0]]})
    assert data == dump_solver(SolverPack.of(table, metadata={"name": "Tiny"}))
    assert hashlib.sha256(data).hexdigest() in text and table.digest in text


def test_layout_of_the_file():
    data = GOLDEN.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    assert length % 8 == 0 and len(data) < 8192
    header = json.loads(data[8 : 8 + length])
    tensors = [name for name in header if name != "__metadata__"]
    assert tensors == sorted(tensors) and all(header[name]["dtype"] == "F64" for name in tensors)
    spans = [header[name]["data_offsets"] for name in tensors]
    assert spans[0][0] == 0 and spans[-1][1] == len(data) - 8 - length
    assert all(before[1] == after[0] for before, after in zip(spans, spans[1:], strict=False))


def spec_of(pack, path):
    save_solver(path, pack)
    with safe_open(path, "np") as file:
        return {k.removeprefix("modelspec."): v for k, v in file.metadata().items() if k != "s4s"}


def test_modelspec_keys(tmp_path):
    data = GOLDEN.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    assert spec_of(golden_pack(), tmp_path / "a.safetensors") == {
        "sai_model_spec": "1.0.1",
        "architecture": "sd-v1/solver",
        "implementation": "s4s",
        "title": "Golden ✨ solver",
        "usage_hint": "Sampler s4s, scheduler s4s, steps 1, 2, 3, 4, 5.",
        "hash_sha256": "0x" + hashlib.sha256(data[end:]).hexdigest(),
        "license": "MIT",
        "author": "S4S",
        "prediction_type": "epsilon",
        "resolution": "512x768",
    }


@pytest.mark.parametrize(
    "about", [{}, {"model": {"architecture": {"b": 1, "a": 2}, "prediction": None}}]
)
def test_modelspec_has_defaults_and_takes_text_only(tmp_path, about):
    spec = spec_of(SolverPack.of(lms(), metadata=about), tmp_path / "a.safetensors")
    always = {"sai_model_spec", "architecture", "implementation", "title", "usage_hint"}
    assert set(spec) == always | {"hash_sha256"}
    assert spec["title"] == "S4S solver" and spec["architecture"] == "diffusion/solver"


def test_digest_changes_with_every_number():
    pack, seen = golden_pack(), {GOLDEN_DIGEST}
    for nfe, table in pack.tables.items():
        free = {**table.masks, "sigmas": np.ones(table.steps + 1), "call_sigmas": np.ones(nfe)}
        for name, mask in free.items():
            for index in zip(*np.nonzero(mask), strict=True):
                array = np.array(table.arrays[name])
                array[index] = np.nextafter(array[index], np.inf)
                changed = table.replace(**{name: array})
                digest = SolverPack({**pack.tables, nfe: changed}, pack.metadata).digest
                assert changed != table and digest not in seen
                seen.add(digest)


def test_digest_changes_with_every_word():
    table = lms()
    low = [0.8, 0.2, 0.1, 0.0]
    kinds = [("ve", "data"), ("ve", "noise"), ("flow", "data"), ("flow", "velocity")]
    others = [SolverTable("lms", 2, f, s, low, low[:-1], table.coefficients) for s, f in kinds]
    assert len({other.digest for other in [table, *others]}) == 5
    assert SolverPack.of(table).digest != SolverPack.of(table, metadata={"name": ""}).digest

    def leaves(value, path=()):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            inner = isinstance(item, dict | list)
            yield from leaves(item, (*path, key)) if inner else [(*path, key)]

    pack = golden_pack()
    for path in leaves(dict(pack.metadata)):
        about = copy.deepcopy(dict(pack.metadata))
        where = about
        for key in path[:-1]:
            where = where[key]
        where[path[-1]] = "changed"
        assert SolverPack(pack.tables, about).digest != GOLDEN_DIGEST


# Errors ------------------------------------------------------------------------------------------


def refusal(path):
    with pytest.raises(SolverFileError) as caught:
        load_solver(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1 and message.endswith(".")
    return message


def test_a_missing_file_and_a_folder(tmp_path):
    path = tmp_path / "missing.safetensors"
    assert refusal(path) == f"{path}: cannot be read: No such file or directory."
    assert "Is a directory" in refusal(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this file system")
def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "a.safetensors")
    assert "it is a pipe" in refusal(tmp_path / "a.safetensors")


def test_a_name_that_no_file_can_have(tmp_path):
    assert "cannot be read: embedded null byte" in refusal("a\0b.safetensors")
    with pytest.raises(SolverFileError, match="cannot be written"):
        save_solver(tmp_path / "a\0b.safetensors", SolverPack.of(lms()))
    assert names(tmp_path) == []


def test_a_hostile_name_is_still_one_line(tmp_path):
    message = refusal(tmp_path / "a\n\x1b[31mb.safetensors")
    assert "\x1b" not in message and "cannot be read" in message


@pytest.mark.parametrize("name", ["a.ckpt", "a", "a.safetensors.bak", ".safetensors"])
def test_a_wrong_suffix_is_refused(tmp_path, name):
    with pytest.raises(SolverFileError, match="must end in .safetensors"):
        save_solver(tmp_path / name, SolverPack.of(lms()))
    assert names(tmp_path) == []


def test_the_suffix_may_have_any_case(tmp_path):
    save_solver(tmp_path / "A.SafeTensors", SolverPack.of(lms()))
    assert load_solver(str(tmp_path / "A.SafeTensors"))[3] == lms()


def nested(depth):
    return {"x": nested(depth - 1)} if depth else 1


loop = []
loop.append(loop)


@pytest.mark.parametrize(
    ("about", "fault"),
    [
        ({"x": [float("inf")]}, "not finite"),
        ({"x": {"y": float("nan")}}, "not finite"),
        ({"x": b"bytes"}, "contains a bytes"),
        ({"x": {1, 2}}, "contains a set"),
        ({"x": np.float32(1)}, "contains a float32"),
        ({"x": np.ones(2)}, "contains a ndarray"),
        ({"x": {1: 2}}, "key that is not text"),
        ({1: 2}, "key that is not text"),
        (nested(9), "nested too deeply"),
        ({"x": loop}, "nested too deeply"),
        ({"x": ["y" * 99_999] * 3}, "exceeds the maximum size"),
        ({"x": "é" * 99_999}, "exceeds the maximum size"),
        ({"x": "\ud800"}, "surrogate"),
        ({"name": 3}, "'name' is not text"),
    ],
)
def test_metadata_that_cannot_be_saved(tmp_path, about, fault):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"old")
    with pytest.raises(SolverFileError, match=fault) as caught:
        save_solver(path, SolverPack.of(lms(), metadata=about))
    assert len(str(caught.value).splitlines()) == 1
    assert names(tmp_path) == ["a.safetensors"] and path.read_bytes() == b"old"


def test_metadata_at_the_limits_can_be_saved(tmp_path):
    thumbnail = "data:image/webp;base64," + "A" * 99_000
    pack = SolverPack.of(lms(), metadata={**nested(8), "thumbnail": thumbnail, "notes": "y" * 1000})
    save_solver(tmp_path / "a.safetensors", pack)
    assert same(load_solver(tmp_path / "a.safetensors"), pack)


def test_the_largest_table_can_be_saved(tmp_path):
    calls = np.linspace(2, 1, 1000)
    b = np.tril(np.ones((1000, 64)))
    large = SolverTable("lms", 64, "noise", "ve", [*calls, 0.5], calls, {"b": b})
    save_solver(tmp_path / "a.safetensors", SolverPack.of(large))
    assert load_solver(tmp_path / "a.safetensors")[1000] == large
    rest = [
        SolverTable("lms", 64, "noise", "ve", [*calls[:n], 0.5], calls[:n], {"b": b[:n]})
        for n in (999, 998)
    ]
    with pytest.raises(SolverFileError, match="exceeds the maximum size"):
        dump_solver(SolverPack.of(large, *rest))


# Atomic writes -----------------------------------------------------------------------------------


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
def test_a_failed_write_leaves_everything_as_it_was(tmp_path, monkeypatch, place, old, error):
    path = tmp_path / "a.safetensors"
    if old:
        path.write_bytes(old)
    before = names(tmp_path)

    def fail(*args, **options):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, place, fail)
        full = isinstance(error, OSError)
        expected = SolverFileError if full else KeyboardInterrupt
        message = "a.safetensors: cannot be written: No space left" if full else None
        with pytest.raises(expected, match=message):
            save_solver(path, SolverPack.of(lms()))
    assert names(tmp_path) == before
    assert not old or path.read_bytes() == old


def test_order_of_a_durable_write(tmp_path, monkeypatch):
    calls, path = [], tmp_path / "a.safetensors"
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            atomic.os, name, lambda *a, n=name, r=real: (calls.append((n, path.exists())), r(*a))[1]
        )
    save_solver(path, SolverPack.of(lms()))
    folder = [("fsync", True)] if os.name != "nt" else []
    assert calls == [("fsync", False), ("replace", False), *folder]


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path, monkeypatch):
    real, path = os.fsync, tmp_path / "a.safetensors"

    def fsync(handle):
        if path.exists():
            raise OSError(22, "Invalid argument")
        real(handle)

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    save_solver(path, SolverPack.of(lms()))
    assert load_solver(path)[3] == lms()


@pytest.mark.skipif(os.name == "nt", reason="modes are Unix")
def test_new_files_follow_the_umask_and_old_ones_keep_their_mode(tmp_path):
    path, mask = tmp_path / "a.safetensors", os.umask(0o027)
    try:
        save_solver(path, SolverPack.of(lms()))
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o604)
        save_solver(path, SolverPack.of(lms(2.0)))
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o604 and load_solver(path)[3] == lms(2.0)


def test_folders_in_the_way_and_missing_ones(tmp_path):
    (tmp_path / "a.safetensors").mkdir()
    with pytest.raises(SolverFileError, match="cannot be written"):
        save_solver(tmp_path / "a.safetensors", SolverPack.of(lms()))
    with pytest.raises(SolverFileError, match="the folder .* does not exist"):
        save_solver(tmp_path / "no" / "a.safetensors", SolverPack.of(lms()))
    assert names(tmp_path) == ["a.safetensors"]


def test_a_new_file_takes_the_first_free_name(tmp_path):
    paths = [tmp_path / f"{name}.safetensors" for name in "abc"]
    assert save_new_solver(paths, SolverPack.of(lms())) == paths[0]
    paths[1].mkdir()
    assert save_new_solver(paths, SolverPack.of(lms(2.0))) == paths[2]
    assert load_solver(paths[0])[3] == lms() and load_solver(paths[2])[3] == lms(2.0)
    with pytest.raises(SolverFileError, match="cannot be written: every name is taken"):
        save_new_solver(paths, SolverPack.of(lms()))
    assert len(names(tmp_path)) == 3


def in_child(work, *arguments):
    """Run a function in a forked process; an exception there fails the test."""
    child = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    child.start()
    child.join(60)
    assert child.exitcode == 0


def _fill_the_disk(folder):
    import resource

    path = Path(folder) / "a.safetensors"
    save_solver(path, SolverPack.of(lms()))
    old, size = path.read_bytes(), len(dump_solver(golden_pack()))
    for limit in {*range(0, size, size // 63), size - 1}:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with pytest.raises(SolverFileError, match="File too large"):
            save_solver(path, golden_pack())
        assert path.read_bytes() == old and names(folder) == ["a.safetensors"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    save_solver(path, golden_pack())
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
        with pytest.raises(
            SolverFileError, match=f"{target}: cannot be written: Permission denied"
        ):
            save_solver(target, SolverPack.of(lms()))
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
        save_solver(path, SolverPack.of(lms()))
    monkeypatch.undo()


def test_sweep_removes_what_a_killed_write_of_that_file_left(tmp_path, monkeypatch):
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


# Merging -----------------------------------------------------------------------------------------


def about_model(nfe, cfg=7.0, **model):
    return SolverPack.of(lms(nfe=nfe), metadata={"model": model, "cfg": [cfg, cfg]})


def test_merging_keeps_the_first_metadata_and_all_scores():
    scores = {"3": {"solver": 0.3}}, {"5": {"solver": 0.5}}
    first = SolverPack.of(lms(), metadata={"name": "first", "scores": scores[0]})
    second = SolverPack.of(lms(nfe=5), metadata={"name": "second", "scores": scores[1]})
    merged = merge_packs(iter([first, second, SolverPack.of(lms())]))
    assert merged.nfes == (3, 5) and merged[3] == lms() and merged[5] == lms(nfe=5)
    assert dict(merged.metadata) == {"name": "first", "scores": scores[0] | scores[1]}
    assert first.nfes == (3,) and first.metadata["scores"] == scores[0]
    plain = [SolverPack.of(lms(), metadata={"name": "a"}), SolverPack.of(lms(nfe=4))]
    assert dict(merge_packs(plain).metadata) == {"name": "a"}
    assert dump_solver(merge_packs([golden_pack()])) == GOLDEN.read_bytes()


MODEL = about_model(3, hash="ab", comfy="comfy:1")


@pytest.mark.parametrize("same", [{"hash": "ab"}, {"hash": "comfy:1"}, {}])
def test_packs_of_one_model_can_be_merged(same):
    assert merge_packs([MODEL, about_model(4, **same)]).nfes == (3, 4)


@pytest.mark.parametrize(
    "packs, message",
    [
        ([], "nothing to merge"),
        ([SolverPack.of(lms()), SolverPack.of(lms(2.0))], "different 3-step tables"),
        ([SolverPack.of(lms()), SolverPack.of(lms(nfe=4, space="flow"))], "same space"),
        ([about_model(3), about_model(4, cfg=3)], "different CFG scales"),
        ([SolverPack.of(lms(nfe=5)), MODEL, about_model(4, hash="cd")], "different models"),
        ([SolverPack.of(lms(nfe=5)), MODEL, about_model(4, hash="comfy:2")], "different models"),
    ],
)
def test_what_cannot_be_merged(packs, message):
    with pytest.raises(TableError, match=message):
        merge_packs(packs)
