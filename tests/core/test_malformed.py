"""Every malformed file is refused in one clear line; no damaged file passes for another solver."""

import copy
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

try:
    import resource
except ImportError:  # Windows
    resource = None
from corpus import GOLDEN, Draft, assemble, contents, malformed, rules, table_field
from safetensors import safe_open
from safetensors.numpy import save_file

from s4s_core.errors import SolverFileError
from s4s_core.solver_file import load_solver

CORPUS = malformed()
FORMAT = (Path(__file__).parents[2] / "docs" / "solver-files.md").read_text(encoding="utf-8")
LONGEST_MESSAGE = 800  # the path and 300 characters of reason
SEED = 20250
SPARE = 64 << 20  # bytes of memory that reading all of these files may take
SECONDS = 10  # of processor time for the same
STATM = Path("/proc/self/statm")
HAS_LIMITS = resource is not None and STATM.exists()


def outcome(path, data):
    """Load a file of these bytes: None and its pack, or the refusal, one line, and None."""
    path.write_bytes(data)
    try:
        return None, load_solver(path)
    except SolverFileError as error:
        message = str(error)
    assert message.startswith(f"{path}: cannot be used: ") and message.endswith(".")
    assert message.isprintable() and len(message) < LONGEST_MESSAGE
    return message, None


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_refused(case, tmp_path):
    message, _ = outcome(tmp_path / "suspect.safetensors", case.data)
    assert message is not None and case.fault in message


@pytest.mark.parametrize(("rule", "data", "fault"), rules(), ids=lambda value: str(value)[:40])
def test_the_reader_checks_every_rule_of_the_format(rule, data, fault, tmp_path):
    message, _ = outcome(tmp_path / "suspect.safetensors", data)
    assert message is not None and fault in message and rule in FORMAT


def test_no_rule_of_the_format_is_left_out():
    """A sentence with MUST is checked above; the one for readers is checked below."""
    quoted = [rule for rule, *_ in rules()] + ["a reader MUST NOT trust them"]
    for sentence in re.split(r"(?<=\.)\s|; |, (?=and other)", FORMAT.partition("## ")[2]):
        assert "MUST" not in sentence or any(rule in sentence for rule in quoted), sentence


def test_files_of_other_writers_are_read(tmp_path):
    """A header in another spelling and order, a whole number for an ending, and modelspec keys
    that lie."""
    path, original = tmp_path / "other.safetensors", load_solver(GOLDEN)
    with safe_open(GOLDEN, "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in reversed(sorted(file.keys()))}
        metadata = file.metadata()
    save_file(tensors, path, metadata | {"modelspec.title": "\x1b[2J", "more": "x"})
    for data in (
        path.read_bytes(),
        table_field("ending", 0),
        assemble(Draft().text() + " " * 3, Draft().blob),
    ):
        assert data != GOLDEN.read_bytes()
        assert contents(outcome(path, data)[1]) == contents(original)


def test_the_corpus_is_large_and_its_base_is_good(tmp_path):
    assert len({case.data for case in CORPUS}) == len(CORPUS) >= 240
    draft = Draft()
    data = assemble(draft.text(), draft.blob)  # other spelling, same contents
    _, pack = outcome(tmp_path / "same.safetensors", data)
    assert data != GOLDEN.read_bytes() and contents(pack) == contents(load_solver(GOLDEN))


def set_limits(seconds):
    """Limit this process to SPARE bytes and so much processor time more than it has used."""
    if HAS_LIMITS:
        most = int(STATM.read_text().split()[0]) * resource.getpagesize() + SPARE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
        resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, used + seconds))


def limited(call, folder, seconds=SECONDS):
    """Evaluate `call`, an expression of this module, in a process with limits."""
    tests = Path(__file__).parents[1]
    paths = [str(tests.parent), str(tests / "helpers"), str(tests / "core")]
    lines = (
        f"import sys; sys.path[:0] = {paths}",
        "from test_malformed import *",
        "fuzz(9, 1)  # allocate everything that is made once before the limit",
        f"set_limits({seconds}); print({call})",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or done.returncode
    return int(done.stdout)


def refuse_all():
    """Read every file of the corpus; return how many were refused."""
    return sum(outcome(Path("suspect.safetensors"), c.data)[0] is not None for c in CORPUS)


ODD_VALUES = [
    *(None, True, False, 0, 1, -1, 2, 3, 1 << 31, 1 << 63, 1e308, 0.5, "", "1", "lms", "pc", "ss"),
    *("noise", "data", "ve", "flow", "F64", "\0", [], {}, [0], [1, 2], {"x": 1}, "x" * 1000),
]


def nodes_in(value, places):
    """Add every (container, key) inside a JSON value to `places`."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        places.append((value, key))
        if isinstance(item, dict | list):
            nodes_in(item, places)
    return places


def edit_json(generator, value):
    """Replace, remove, copy, swap or rename something inside a JSON object, in place."""
    nodes = nodes_in(value, [])
    (where, key), (other, name) = generator.choice(nodes), generator.choice(nodes)
    action = generator.randrange(6)
    if action == 0:
        where[key] = copy.deepcopy(generator.choice(ODD_VALUES))
    elif action == 1:
        del where[key]
    elif action == 2:
        where[key] = copy.deepcopy(other[name])
    elif action == 3:
        where[key], other[name] = copy.deepcopy(other[name]), copy.deepcopy(where[key])
    elif action == 4 and isinstance(where, dict):
        where[str(name)] = where.pop(key)
    elif isinstance(where[key], int | float):
        where[key] += generator.choice((-8, -1, 1, 8, 0.5, 1e-16))


def damage_json(generator, data):
    draft = Draft(data)
    for _ in range(generator.choice((1, 1, 1, 2, 4))):
        target = draft.manifest if generator.random() < 0.5 else draft.header
        if target:
            edit_json(generator, target)
    try:
        text = draft.text()
    except (KeyError, TypeError):  # the edit removed the manifest
        text = json.dumps(draft.header)
    return assemble(text, draft.blob)


def damage_bytes(generator, data):
    """Flip a bit, set a byte, insert, remove, swap or overwrite some bytes."""
    data = bytearray(data)
    for _ in range(generator.choice((1, 1, 1, 2, 8))):
        at, other = generator.randrange(len(data)), generator.randrange(len(data))
        action, size = generator.randrange(7), generator.choice((1, 1, 2, 8, 40))
        if action <= 1:
            data[at] ^= 1 << generator.randrange(8)
        elif action == 2:
            data[at] = generator.randrange(256)
        elif action == 3:
            data[at:at] = generator.randbytes(size)
        elif action == 4 and len(data) > 2 * size:
            del data[at : at + size]
        elif action == 5 and max(at, other) + size <= len(data) and abs(at - other) >= size:
            here, there = data[at : at + size], data[other : other + size]
            data[at : at + size], data[other : other + size] = there, here
        elif action == 6:
            data[at : at + size] = generator.choice((b"\0", b"\xff", b" ", b'"', b"9")) * size
    return bytes(data)


def mutant(generator, data):
    """Return `data` damaged in one of many ways; sometimes only the spelling changes."""
    return (damage_json if generator.random() < 0.4 else damage_bytes)(generator, data)


def fuzz(count, seed):
    """Load `count` mutants; return how many were accepted, each equal to the original."""
    generator, path = random.Random(seed), Path("mutant.safetensors")
    data, original, accepted = GOLDEN.read_bytes(), contents(load_solver(GOLDEN)), 0
    for number in range(count):
        _, pack = outcome(path, mutant(generator, data))
        accepted += pack is not None
        assert pack is None or contents(pack) == original, (seed, number)
    return accepted


@pytest.mark.skipif(not HAS_LIMITS, reason="memory cannot be limited here")
def test_refusals_need_little_memory_and_time(tmp_path):
    assert limited("refuse_all()", tmp_path) == len(CORPUS)


@pytest.mark.skipif(not HAS_LIMITS, reason="memory cannot be limited here")
def test_the_limits_hold(tmp_path):
    assert limited("len(bytearray(SPARE // 2))", tmp_path) == SPARE // 2
    with pytest.raises(AssertionError, match="MemoryError"):
        limited("len(bytearray(SPARE // 2 * 3))", tmp_path)
    with pytest.raises(AssertionError, match="-(9|24)"):  # SIGKILL or SIGXCPU
        limited("sum(iter(float, 1))", tmp_path, 1)


def test_3000_mutants(tmp_path):
    accepted = limited("fuzz(3000, SEED)", tmp_path, 10 * SECONDS)
    assert 0 < accepted < 1000  # some only change the spelling


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_200_000_mutants(part, tmp_path):
    limited(f"fuzz(25_000, SEED + {1 + part})", tmp_path, 100 * SECONDS)
