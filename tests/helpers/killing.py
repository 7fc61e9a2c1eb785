"""Kill a training run again and again: `python killing.py METHOD KILLS SEED`.

Every attempt is a fork that runs `fit` with a saved state and is killed (SIGKILL): half of them
after a random time, half by themselves during a random write, fsync or replace. Prints one JSON
object: how many attempts it took until KILLS of them had died, whether the finished solver has the
bytes of an undisturbed run, and which temporary files of the saved run are left. (Those of the
solver may stay: it can have several writers, so nobody knows which of them are dead.)
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

import torch  # noqa: E402
from learners import small, tiny_fit  # noqa: E402

from s4s_core import save_solver  # noqa: E402
from s4s_core.atomic import SUFFIX, temporary_stem  # noqa: E402

PLACES = ("fdopen", "fsync", "replace")
STATE = "run.safetensors"


def train(method, folder):
    """One attempt: a short run over two NFEs that saves its state after every step."""
    init = "auto" if method == "gauss-newton" else "ipndm:3:edm"
    options = dict(samples=24, budget=2500, epochs=3, batch=8)
    result = tiny_fit(small(), (3, 4), method, init=init, state=folder / STATE, **options)
    save_solver(folder / "solver.safetensors", result.pack)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(place, count):
    """Make this process kill itself at the count-th call of os.`place`, just before or after it.

    At fdopen, which begins a write, it dies with half of the data written.
    """
    inner, left, after = getattr(os, place), [count], count % 2

    def deadly(*arguments, **options):
        left[0] -= 1
        if left[0] == 0 and not after:
            die()
        result = inner(*arguments, **options)
        if left[0] == 0 and place == "fdopen":
            result = HalfWriter(result)
        elif left[0] == 0:
            die()
        return result

    setattr(os, place, deadly)


class HalfWriter:
    """A file that dies in the middle of its first write."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        self.file.close()

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        die()


def attempt(method, folder, prepare=lambda: None, seconds=None):
    """Fork one attempt; True if it finished, False if it was killed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            prepare()
            train(method, folder)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.WEXITSTATUS(status):
        raise SystemExit(f"an attempt failed with exit code {os.WEXITSTATUS(status)}")
    return True


def main(method, kills, seed):
    torch.set_num_threads(1)
    chance, home = random.Random(seed), Path(tempfile.mkdtemp())
    try:
        whole, broken = home / "whole", home / "broken"
        whole.mkdir(), broken.mkdir()
        began = time.monotonic()
        attempt(method, whole)
        length = time.monotonic() - began
        attempts = died = 0
        while died < kills:
            attempts += 1
            if attempts % 2:
                place, count = chance.choice(PLACES), chance.randint(1, 6)
                finished = attempt(method, broken, lambda p=place, c=count: die_at(p, c))
            else:
                finished = attempt(method, broken, seconds=chance.uniform(0.1, 0.5) * length)
            died += not finished
            if finished:  # before it was killed: start over
                shutil.rmtree(broken)
                broken.mkdir()
        attempt(method, broken)
        same = [(f / "solver.safetensors").read_bytes() for f in (whole, broken)]
        left = [p.name for p in broken.glob(f"{temporary_stem(broken / STATE)}-*{SUFFIX}")]
        print(json.dumps({"attempts": attempts, "equal": same[0] == same[1], "left": left}))
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
