"""Every malformed file is refused in one clear line; no damaged one is taken for another solver."""

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

try:
    import resource
except ImportError:  # Windows
    resource = None
from corpus import GOLDEN, Draft, assemble, malformed, mutant

from s4s_core.errors import SolverFileError
from s4s_core.solver_file import load_solver

CORPUS = malformed()
LONGEST_MESSAGE = 800  # the path and 300 characters of reason
SEED = 20250
SPARE = 64 << 20  # bytes within which all such files are read, one after the other
STATM = Path("/proc/self/statm")
HAS_LIMITS = resource is not None and STATM.exists()


def contents(pack):
    """Everything that a pack says, without trusting its digest."""
    tables = {
        nfe: (
            t.family,
            t.order,
            t.form,
            t.space,
            [(n, a.shape, a.tobytes()) for n, a in t.arrays.items()],
        )
        for nfe, t in pack.tables.items()
    }
    return tables, dict(pack.metadata), pack.digest


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_refused(case, tmp_path):
    path = tmp_path / "suspect.safetensors"
    path.write_bytes(case.data)
    started = time.process_time()
    with pytest.raises(SolverFileError) as caught:
        load_solver(path)
    took, message = time.process_time() - started, str(caught.value)
    assert took < 1
    assert message.startswith(f"{path}: cannot be used: ") and message.endswith(".")
    assert message.isprintable() and len(message) < LONGEST_MESSAGE
    assert case.fault is None or case.fault in message


def test_the_corpus_is_large_and_its_base_is_good(tmp_path):
    assert len(CORPUS) >= 60
    repeated = [name for name, times in Counter(case.name for case in CORPUS).items() if times > 1]
    assert not repeated
    draft, path = Draft(), tmp_path / "same.safetensors"
    path.write_bytes(assemble(draft.text(), draft.blob))  # other spelling, same contents
    assert path.read_bytes() != GOLDEN.read_bytes()
    assert contents(load_solver(path)) == contents(load_solver(GOLDEN))


def limit_memory():
    """Let this process take SPARE bytes more than it has, Python's and Rust's alike."""
    if HAS_LIMITS:
        most = int(STATM.read_text().split()[0]) * resource.getpagesize() + SPARE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def in_little_memory(call, folder):
    """What `call`, an expression of this module, is in a process in `folder` that has a limit."""
    tests = Path(__file__).parents[1]
    paths = [str(tests.parent), str(tests / "helpers"), str(tests / "core")]
    lines = (
        f"import sys; sys.path[:0] = {paths}",
        "from test_malformed import *",
        "fuzz(9, 1, '.')  # whatever is made once is there before the limit",
        f"limit_memory(); print({call})",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def refuse_all(folder):
    """Read every file of the corpus; how many were refused."""
    path, refused = Path(folder) / "suspect.safetensors", 0
    for case in CORPUS:
        path.write_bytes(case.data)
        try:
            load_solver(path)
        except SolverFileError:
            refused += 1
    return refused


@pytest.mark.skipif(not HAS_LIMITS, reason="this system cannot limit a process's memory")
def test_refusals_need_little_memory(tmp_path):
    assert in_little_memory("refuse_all('.')", tmp_path) == len(CORPUS)


@pytest.mark.skipif(not HAS_LIMITS, reason="this system cannot limit a process's memory")
def test_the_limit_holds(tmp_path):
    assert in_little_memory("len(bytearray(SPARE // 2))", tmp_path) == SPARE // 2
    with pytest.raises(AssertionError, match="MemoryError"):
        in_little_memory("len(bytearray(SPARE // 2 * 3))", tmp_path)


def fuzz(count, seed, folder):
    """Load `count` mutants; the number that was accepted, each one equal to the original."""
    generator, path = random.Random(seed), Path(folder) / "mutant.safetensors"
    data, original, accepted, slowest = GOLDEN.read_bytes(), contents(load_solver(GOLDEN)), 0, 0.0
    for number in range(count):
        damaged = mutant(generator, data)
        path.write_bytes(damaged)
        started = time.process_time()
        try:
            pack = load_solver(path)
        except SolverFileError as error:
            message = str(error)
            assert message.startswith(str(path)) and message.isprintable(), (seed, number)
            assert len(message) < LONGEST_MESSAGE, (seed, number)
        else:
            accepted += 1
            assert contents(pack) == original, (
                f"mutant {number} of seed {seed} passed for another solver"
            )
        slowest = max(slowest, time.process_time() - started)
    assert slowest < 1
    return accepted


def test_3000_mutants(tmp_path):
    accepted = in_little_memory("fuzz(3000, SEED, '.')", tmp_path)
    assert 0 < accepted < 1000  # some only spell the same contents in another way


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_200_000_mutants(part, tmp_path):
    in_little_memory(f"fuzz(25_000, SEED + {1 + part}, '.')", tmp_path)
