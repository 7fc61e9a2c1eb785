"""Every malformed file is refused in one clear line; no damaged file passes for another solver."""

import random
import subprocess
import sys
import time
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
SPARE = 64 << 20  # bytes of memory that reading all of these files may take
STATM = Path("/proc/self/statm")
HAS_LIMITS = resource is not None and STATM.exists()


def contents(pack):
    """Everything that a pack holds, without trusting its digest."""
    tables = []
    for nfe, table in pack.tables.items():
        arrays = [(name, array.shape, array.tobytes()) for name, array in table.arrays.items()]
        tables.append((nfe, table.family, table.order, table.form, table.space, arrays))
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
    assert case.fault in message


def test_the_corpus_is_large_and_its_base_is_good(tmp_path):
    assert len({case.data for case in CORPUS}) == len(CORPUS) >= 240
    draft, path = Draft(), tmp_path / "same.safetensors"
    path.write_bytes(assemble(draft.text(), draft.blob))  # other spelling, same contents
    assert path.read_bytes() != GOLDEN.read_bytes()
    assert contents(load_solver(path)) == contents(load_solver(GOLDEN))


def limit_memory():
    """Limit this process to SPARE bytes more than it has."""
    if HAS_LIMITS:
        most = int(STATM.read_text().split()[0]) * resource.getpagesize() + SPARE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def in_little_memory(call, folder):
    """Evaluate `call`, an expression of this module, in a process with limited memory."""
    tests = Path(__file__).parents[1]
    paths = [str(tests.parent), str(tests / "helpers"), str(tests / "core")]
    lines = (
        f"import sys; sys.path[:0] = {paths}",
        "from test_malformed import *",
        "fuzz(9, 1, '.')  # allocate everything that is made once before the limit",
        f"limit_memory(); print({call})",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def refuse_all(folder):
    """Read every file of the corpus; return how many were refused."""
    path, refused = Path(folder) / "suspect.safetensors", 0
    for case in CORPUS:
        path.write_bytes(case.data)
        try:
            load_solver(path)
        except SolverFileError:
            refused += 1
    return refused


@pytest.mark.skipif(not HAS_LIMITS, reason="memory cannot be limited here")
def test_refusals_need_little_memory(tmp_path):
    assert in_little_memory("refuse_all('.')", tmp_path) == len(CORPUS)


@pytest.mark.skipif(not HAS_LIMITS, reason="memory cannot be limited here")
def test_the_limit_holds(tmp_path):
    assert in_little_memory("len(bytearray(SPARE // 2))", tmp_path) == SPARE // 2
    with pytest.raises(AssertionError, match="MemoryError"):
        in_little_memory("len(bytearray(SPARE // 2 * 3))", tmp_path)


def fuzz(count, seed, folder):
    """Load `count` mutants; return how many were accepted, each equal to the original."""
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
            assert contents(pack) == original, (seed, number)
        slowest = max(slowest, time.process_time() - started)
    assert slowest < 1
    return accepted


def test_3000_mutants(tmp_path):
    accepted = in_little_memory("fuzz(3000, SEED, '.')", tmp_path)
    assert 0 < accepted < 1000  # some only change the spelling


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_200_000_mutants(part, tmp_path):
    in_little_memory(f"fuzz(25_000, SEED + {1 + part}, '.')", tmp_path)
