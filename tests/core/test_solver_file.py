"""Solver files: round trips, reproducible bytes, the golden file, metadata, merging."""

import copy
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from corpus import GOLDEN, GOLDEN_2, contents
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors import safe_open
from safetensors.numpy import load_file

from s4s_core.errors import SolverFileError, TableError
from s4s_core.names import FORMS
from s4s_core.solver_file import dump_solver, load_solver, merge_packs, save_solver
from s4s_core.table import FAMILIES, SolverPack, SolverTable, coefficient_masks

ROOT = Path(__file__).resolve().parents[2]
GOLDEN_SHA256 = "94abc15fa313f3ec7fd1e6e2e734b06931c5304690edf44d24199c00ecfc83b8"
GOLDEN_2_SHA256 = "e95a8245b9fa30277ae361d9507a343fb33073f606b162dac4a007839563af88"
GOLDEN_DIGEST = "ea1332465c9b92657eb204ff8b8d2d7200ebd90a355ae486e5a32a13c8786810"


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


def golden_pack_2():
    """What tests/golden/format2.safetensors holds: some tables with guidance, some without."""
    plain = golden_pack()
    guidance = {2: [1.0, 1 / 3], 3: [0.0, 5e-324, 1e300], 4: [1.0, 0.75, 0.5, 0.0]}
    guided = [plain[nfe].replace(guidance=values) for nfe, values in guidance.items()]
    return SolverPack.of(plain[1], *guided, plain[5], metadata=plain.metadata)


@st.composite
def tables(draw, space):
    """Valid tables of every family and form, with any numbers that a table may hold."""
    family, form = draw(st.sampled_from(FAMILIES)), draw(st.sampled_from(FORMS[space]))
    order, steps = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    last = draw(st.integers(1, order)) if family == "ss" else 1
    nfe = order * (steps - 1) + last if family == "ss" else steps
    top = 1e300 if space == "ve" else (0.999 if form == "noise" else 1.0)
    levels = st.lists(st.floats(0.0, top), min_size=steps + 1, max_size=steps + 1, unique=True)
    sigmas = sorted(draw(levels), reverse=True)
    calls = draw(st.lists(st.floats(0.0, top, exclude_min=True), min_size=nfe, max_size=nfe))
    finite = st.floats(allow_nan=False, allow_infinity=False)
    coefficients = {
        name: np.where(mask, draw(arrays(np.float64, mask.shape, elements=finite)), 0.0)
        for name, mask in coefficient_masks(family, steps, order, nfe).items()
    }
    multipliers = arrays(np.float64, nfe, elements=st.floats(0.0, 1e300))
    guidance = draw(st.none() | multipliers)
    return SolverTable(family, order, form, space, sigmas, calls, coefficients, guidance)


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
        "cfg": st.tuples(st.integers(0, 9), st.floats(0, 99)).map(list),
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


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(pack=packs())
def test_packs_are_read_back_bit_for_bit(pack, tmp_path_factory):
    """By us and by the safetensors library; no order of keys changes the bytes."""
    path = tmp_path_factory.getbasetemp() / "round.safetensors"
    save_solver(path, pack)
    loaded = load_solver(path)
    assert contents(loaded) == contents(pack) and loaded.tables == pack.tables
    other_order = SolverPack(dict(reversed(pack.tables.items())), shuffled(dict(pack.metadata)))
    assert dump_solver(loaded) == dump_solver(other_order) == path.read_bytes()
    theirs = {name: (array.shape, array.tobytes()) for name, array in load_file(path).items()}
    assert theirs == {
        f"nfe{nfe}/{name}": (array.shape, array.tobytes())
        for nfe, table in pack.tables.items()
        for name, array in table.arrays.items()
    }
    with safe_open(path, "np") as file:
        manifest = json.loads(file.metadata()["s4s"])
    assert manifest["sha256"] == pack.digest
    assert manifest["format"] == (2 if pack.sets_guidance else 1)


def test_same_bytes_from_another_process():
    code = (
        "import sys, hashlib; sys.path[:0] = sys.argv[1:]; import test_solver_file as t;"
        "print(hashlib.sha256(t.dump_solver(t.golden_pack())).hexdigest())"
    )
    paths = [str(ROOT), str(ROOT / "tests" / "helpers"), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *paths]
    out = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert out.stdout.strip() == GOLDEN_SHA256


@pytest.mark.parametrize(
    "path, sha256, made",
    [(GOLDEN, GOLDEN_SHA256, golden_pack), (GOLDEN_2, GOLDEN_2_SHA256, golden_pack_2)],
)
def test_the_golden_files_are_read_and_reproduced(path, sha256, made):
    assert hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    pack = load_solver(path)
    assert contents(pack) == contents(made())
    assert dump_solver(made()) == dump_solver(pack) == path.read_bytes()
    with pytest.raises(ValueError):
        pack[3].sigmas[0] = 1.0


def test_a_pack_without_guidance_is_a_file_of_format_1():
    """Every version reads it: taking the multipliers away gives the bytes of format 1."""
    guided = golden_pack_2()
    plain = [table.replace(guidance=None) for table in guided.tables.values()]
    data = dump_solver(SolverPack.of(*plain, metadata=guided.metadata))
    assert data == GOLDEN.read_bytes() != GOLDEN_2.read_bytes()
    assert guided.digest != GOLDEN_DIGEST == load_solver(GOLDEN).digest


@pytest.mark.parametrize("number, path", [(1, GOLDEN), (2, GOLDEN_2)])
def test_hash_rule_of_the_specification(number, path):
    """Compute the digest from the file alone, as docs/solver-files.md says."""
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    s4s = header["__metadata__"]["s4s"]
    statement, digests = json.loads(s4s), {}
    for nfe, about in statement["tables"].items():
        digest = hashlib.sha256(f"{about['family']} {about['order']} {about['form']} ve".encode())
        parts = [n.split("/")[1] for n in header if n.startswith(f"nfe{nfe}/")]
        first = [name for name in ("sigmas", "call_sigmas", "guidance") if name in parts]
        for name in (*first, *sorted({*parts} - {*first})):
            entry = header[f"nfe{nfe}/{name}"]
            shape = ", ".join(map(str, entry["shape"])) + ("," if len(entry["shape"]) == 1 else "")
            start, stop = entry["data_offsets"]
            digest.update(f" {name} ({shape}) ".encode() + data[end + start : end + stop])
        digests[nfe] = digest.hexdigest()
    about = s4s[len('{"about":') : s4s.index(f',"format":{number},"sha256":')]
    spelled = ",".join(f'"{nfe}":"{digests[nfe]}"' for nfe in sorted(digests))
    whole = f'{{"about":{about},"tables":{{{spelled}}}}}'
    assert hashlib.sha256(whole.encode()).hexdigest() == statement["sha256"]
    assert number == 2 or statement["sha256"] == GOLDEN_DIGEST


def test_the_worked_example_of_the_specification():
    """The blocks of docs/solver-files.md, joined, are the file that we write."""
    text = (ROOT / "docs/solver-files.md").read_text(encoding="utf-8")
    (_, length), (_, header), (_, tensors) = re.findall(r"```(hex|json)\n(.*?)```", text, re.S)
    header = header.replace("\n", "").encode() + b" " * 4
    data = bytes.fromhex(length) + header + bytes.fromhex(tensors)
    table = SolverTable("lms", 1, "noise", "ve", [80.0, 0.0], [79.5], {"b": [[1.0]]})
    assert data == dump_solver(SolverPack.of(table, metadata={"name": "Tiny"}))
    assert hashlib.sha256(data).hexdigest() in text and table.digest in text


@pytest.mark.parametrize("model", [{}, {"architecture": {"b": 1, "a": 2}, "prediction": None}])
def test_modelspec_has_defaults_and_takes_text_only(tmp_path, model):
    """The golden file holds every key."""
    save_solver(tmp_path / "a.safetensors", SolverPack.of(lms(), metadata={"model": model}))
    with safe_open(tmp_path / "a.safetensors", "np") as file:
        spec = {key.removeprefix("modelspec."): value for key, value in file.metadata().items()}
    always = {"s4s", "sai_model_spec", "architecture", "implementation", "title", "usage_hint"}
    assert set(spec) == always | {"hash_sha256"}
    assert spec["title"] == "S4S solver" and spec["architecture"] == "diffusion/solver"


def test_digest_changes_with_every_number():
    pack = golden_pack_2()
    seen = {GOLDEN_DIGEST, pack.digest}
    for nfe, table in pack.tables.items():
        free = {name: np.ones_like(array) for name, array in table.arrays.items()} | table.masks
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


def nested(depth):
    return {"x": nested(depth - 1)} if depth else 1


loop = []
loop.append(loop)


@pytest.mark.parametrize(
    ("about", "fault"),
    [
        ({"x": [float("inf")]}, "not finite"),
        ({"x": {"y": float("nan")}}, "not finite"),
        *(({"x": x}, "contains a") for x in (b"bytes", {1, 2}, np.float32(1), np.ones(2))),
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
    assert [*tmp_path.iterdir()] == [path] and path.read_bytes() == b"old"


def test_metadata_and_tables_at_the_limits_can_be_saved(tmp_path):
    path = tmp_path / "a.safetensors"
    thumbnail = "data:image/webp;base64," + "A" * 99_000
    pack = SolverPack.of(lms(), metadata={**nested(8), "thumbnail": thumbnail, "notes": "y" * 1000})
    save_solver(path, pack)
    assert contents(load_solver(path)) == contents(pack)
    calls, b = np.linspace(2, 1, 1000), np.tril(np.ones((1000, 64)))
    large, *rest = (
        SolverTable("lms", 64, "noise", "ve", [*calls[:n], 0.5], calls[:n], {"b": b[:n]})
        for n in (1000, 999, 998)
    )
    save_solver(path, SolverPack.of(large))
    assert load_solver(path)[1000] == large
    with pytest.raises(SolverFileError, match="exceeds the maximum size"):
        dump_solver(SolverPack.of(large, *rest))


def about_model(nfe, cfg=7.0, **model):
    return SolverPack.of(lms(nfe=nfe), metadata={"model": model, "cfg": [cfg, cfg]})


def test_merging_keeps_the_first_metadata_and_all_scores():
    scores = {"3": {"solver": 0.3}}, {"5": {"solver": 0.5}}
    first = SolverPack.of(lms(), metadata={"name": "first", "scores": scores[0]})
    second = SolverPack.of(lms(nfe=5), metadata={"name": "second", "scores": scores[1]})
    merged = merge_packs(iter([first, second, SolverPack.of(lms())]))
    assert merged.nfes == (3, 5) and merged[3] == lms() and merged[5] == lms(nfe=5)
    assert dict(merged.metadata) == {"name": "first", "scores": scores[0] | scores[1]}
    plain = [SolverPack.of(lms(), metadata={"name": "a"}), SolverPack.of(lms(nfe=4))]
    assert dict(merge_packs(plain).metadata) == {"name": "a"}
    assert dump_solver(merge_packs([golden_pack()])) == GOLDEN.read_bytes()


MODEL = about_model(3, hash="ab", comfy="comfy:1")


def test_packs_of_one_model_can_be_merged():
    for same in ({"hash": "ab"}, {"hash": "comfy:1"}, {}):
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
