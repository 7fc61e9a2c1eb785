"""Every malformed file is refused in one clear line; no damaged one is taken for another solver."""

import random
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from corpus import GOLDEN, Draft, assemble, malformed, mutant

from s4s_core.errors import SolverFileError
from s4s_core.solver_file import load_solver

CORPUS = malformed()
LONGEST_MESSAGE = 800  # the path and 300 characters of reason
SEED = 20250


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


def test_refusals_need_little_memory(tmp_path):
    path, peaks = tmp_path / "suspect.safetensors", {}
    tracemalloc.start()
    try:
        for case in CORPUS:
            path.write_bytes(case.data)
            tracemalloc.reset_peak()
            with pytest.raises(SolverFileError):
                load_solver(path)
            peaks[case.name] = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert max(peaks.values()) < 64 << 20, max(peaks, key=peaks.get)


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
    accepted = fuzz(3000, SEED, tmp_path)
    assert 0 < accepted < 1000  # some only spell the same contents in another way


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_200_000_mutants(part, tmp_path):
    fuzz(25_000, SEED + 1 + part, tmp_path)
