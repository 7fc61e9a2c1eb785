"""A cell is one declared measurement, as data: equal cells are the same measurement.

Its key is a digest of everything that it says and of the bundled model's weights, and its result
one JSON file of that name, so that a finished cell is never measured again and a killed benchmark
goes on where it was. A ledger (paper-cells.jsonl, beside the report) holds the finished cells of a
whole run, a line each: with it the benchmark goes on anywhere.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from s4s_core.atomic import write_atomic
from s4s_core.demo import WEIGHTS
from s4s_core.lock import Lock
from s4s_core.table import SolverTable, canonical_json

RECIPE = 3
"""Raised when the way of measuring changes, so that old results are not mistaken for new ones."""

UNLEARNED = "unlearned"
BUNDLED = "bundled"
RIVALS = ("bns", "gs", "trajectory", "dpm-v3")


@lru_cache(maxsize=1)
def weights_digest():
    """A digest of the bundled model's weights: other weights, other results."""
    return hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Cell:
    """A solver on a schedule at an NFE, and how it is learned.

    solver: a classical one (with its order), "auto" (training chooses its own start) or "best"
    (the best of all classical solvers on all schedules). schedule: a name, "ld3" or "auto". method:
    "unlearned", a method of `fit`, a rival, "bundled" (what the bundled solver file holds) or
    "teacher". options: more options of `fit`, or what else names a table, as sorted (name, value)
    pairs. frechet: the number of pictures of a Fréchet distance, 0 for errors.
    """

    solver: str = "auto"
    order: int = 3
    schedule: str = "edm"
    nfe: int = 5
    cfg: float = 1.0
    method: str = UNLEARNED
    seed: int = 0
    budget: int = 0
    options: tuple = ()
    frechet: int = 0
    model: str = "demo"
    fresh: int = 256

    @property
    def key(self):
        text = canonical_json([RECIPE, weights_digest(), asdict(self)])
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def start(self):
        """The start as `fit` names it."""
        return "auto" if self.solver == "auto" else f"{self.solver}:{self.order}:{self.schedule}"

    @property
    def label(self):
        """A few words for a progress line."""
        where = f"{self.nfe} NFE, CFG {self.cfg:g}"
        extra = "".join(f", {name} {value}" for name, value in self.options)
        what = "Fréchet distance of " if self.frechet else ""
        return f"{what}{self.method} {self.start}, {where}, seed {self.seed}{extra}"


class Shelf:
    """The folder of finished cells."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, cell):
        return self.folder / f"{cell.key}.json"

    def state(self, cell):
        """Where the training of a cell that is not finished is kept."""
        return self.folder / f"{cell.key}.state.safetensors"

    def load(self, cell):
        """The result of a cell, or None where it is not finished (or its file is damaged)."""
        try:
            return json.loads(self.path(cell).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def adopt(self, ledger):
        """Take the results of a ledger that are of this recipe and these weights, if it exists."""
        lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.is_file() else []
        for line in lines:
            key, found = json.loads(line)
            facts = found.pop("cell")
            cell = Cell(**facts | {"options": tuple(map(tuple, facts["options"]))})
            if cell.key == key and self.load(cell) is None:
                self.save(cell, found)

    def publish(self, ledger, cells):
        """Write the finished ones of the cells to a ledger."""
        found = [(cell.key, self.load(cell)) for cell in cells]
        lines = [canonical_json(pair) + "\n" for pair in found if pair[1] is not None]
        ledger.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(ledger, "".join(lines).encode())

    def lock(self, cell):
        """Held by the process that measures a cell: others may need its result."""
        return Lock(self.folder / f"{cell.key}.lock")

    def save(self, cell, result):
        """Keep a result."""
        about = {"cell": asdict(cell), **result}
        write_atomic(self.path(cell), json.dumps(about, allow_nan=False).encode())
        return about


def table_data(table):
    """A table as JSON."""
    arrays = {name: array.tolist() for name, array in table.arrays.items()}
    return {key: getattr(table, key) for key in ("family", "order", "form", "space")} | arrays


def table_from(data):
    """The table that `table_data` described."""
    rest = dict(data)
    head = [rest.pop(key) for key in ("family", "order", "form", "space", "sigmas", "call_sigmas")]
    return SolverTable(*head, rest)
