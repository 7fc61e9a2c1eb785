"""Two processes on the loopback give the result of one; only the first saves and reports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from learners import small, tiny_fit
from torchrun import ranks

from s4s_core import load_solver

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"samples": 9, "validation": 5, "held_out": 4, "budget": 2500}

# What each process runs; torchrun would set the same variables.
WORKER = """
import json, sys
import torch
import torch.distributed as dist
import s4s_core.training.fit as fit
from learners import Counted, changed, small, task_of, tiny_fit
from s4s_core import save_solver
from s4s_core.candidates import squared_errors
from s4s_core.training.distributed import joined

torch.set_num_threads(1)
folder, method, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
events, saves, write = [], [], fit.save_state
fit.save_state = lambda *a: (saves.append(1), write(*a))
inner = small()
counted = Counted(inner.denoise)
model = changed(inner, denoise=counted)

with joined():
    rank = dist.get_rank()
    result = tiny_fit(model, 4, method, callback=events.append, state=f"{folder}/run", **options)
    save_solver(f"{folder}/{rank}.safetensors", result.pack)

    task = task_of(inner)  # fewer pairs than processes: the second has no row at all
    few = task.errors(result.pack[4], task.validation[:1])
    rows = task.errors(result.pack[4], task.train)
    alone = squared_errors(inner.denoise, result.pack[4], task.train)
    dist.barrier()
about = {"events": len(events), "saves": len(saves), "made": counted.calls, "few": len(few)}
about |= {"calls": result.calls, "ordered": torch.allclose(rows, alone, rtol=1e-4)}
open(f"{folder}/{rank}.json", "w").write(json.dumps(about))
"""


def launch(folder, method, world, timeout=900):
    """Run the worker in `world` processes; what each says about itself."""
    command = [sys.executable, "-c", WORKER, str(folder), method, json.dumps(OPTIONS)]
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])}
    with ranks(world) as environments:
        running = [
            subprocess.Popen(command, env=each | path, stderr=subprocess.PIPE, text=True)
            for each in environments
        ]
        try:
            for process in running:
                _, errors = process.communicate(timeout=timeout)
                assert process.returncode == 0, errors
        finally:
            for process in running:
                process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
@pytest.mark.parametrize("method", ["gauss-newton", "s4s"])
def test_two_processes_give_the_result_of_one(tmp_path, method):
    first, second = launch(tmp_path, method, 2)
    tables = [load_solver(tmp_path / f"{rank}.safetensors")[4] for rank in range(2)]
    assert tables[0] == tables[1], "all processes end with the same table"
    alone = tiny_fit(small(), 4, method, **OPTIONS)
    for name, array in alone.pack[4].arrays.items():
        np.testing.assert_allclose(tables[0].arrays[name], array, rtol=1e-6, atol=1e-6)
    assert first["calls"] == second["calls"] == alone.calls, "the calls of all are counted"
    assert first["made"] < alone.calls and second["made"] < alone.calls, "the work is shared"
    assert first["events"] and not second["events"]
    assert first["saves"] and not second["saves"]
    assert first["few"] == second["few"] == 1
    assert first["ordered"] and second["ordered"], "rows come back in the order of the pairs"
