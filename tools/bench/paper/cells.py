"""Cells: measurements declared as data, and the store of their results.

The key of a cell is a digest of its fields and of the bundled model's weights. Its result is one
JSON file of that name, so a finished cell is never measured again and a killed benchmark resumes
where it stopped. A ledger (paper-cells.jsonl, next to the report) holds all finished cells of a
run, one per line, so the benchmark can resume on another machine.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from s4s_core.atomic import write_atomic
from s4s_core.demo import WEIGHTS
from s4s_core.lock import Lock
from s4s_core.table import SolverTable, canonical_json

RECIPE = 4
"""Increase this when measurements change, so that old results are not reused."""

UNLEARNED = "unlearned"
BUNDLED = "bundled"
CHOICE = "choice"
SEARCH = "search"
RIVALS = ("bns", "gs", "trajectory", "dpm-v3")

Result = dict[str, Any]
"""What was measured of a cell: rmse, median, lpips, specks, calls, seconds, table, ..."""


@lru_cache(maxsize=1)
def weights_digest() -> str:
    """Digest of the bundled model's weights."""
    return hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Cell:
    """One measurement: a solver on a schedule at an NFE, and how it is learned.

    solver    a classical solver (with its order), "auto" (training picks its start), "best" (the
              best of all classical solvers on all schedules) or "few" (the best of a few, for
              models of a few calls a second)
    schedule  a schedule's name, "ld3" or "auto"
    method    "unlearned", a method of `fit`, a rival, "bundled" (the bundled solver file),
              "teacher", "choice" (which teacher the model gets) or "search" (which start
              training gets, where a search is too dear to repeat)
    options   more options of `fit`, or what else identifies a table, as sorted (name, value) pairs
    frechet   the number of pictures for a Fréchet distance; 0 measures errors instead
    teacher   the solver:order to train with, "" for the chosen one; scores always use the chosen

    Equal cells are the same measurement.
    """

    solver: str = "auto"
    order: int = 3
    schedule: str = "edm"
    nfe: int = 5
    cfg: float = 1.0
    method: str = UNLEARNED
    seed: int = 0
    budget: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    frechet: int = 0
    model: str = "demo"
    fresh: int = 256
    teacher: str = ""

    @property
    def key(self) -> str:
        """File name of the result, without its suffix."""
        text = canonical_json([RECIPE, weights_digest(), asdict(self)])
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def start(self) -> str:
        """The start, as `fit` spells it."""
        return "auto" if self.solver == "auto" else f"{self.solver}:{self.order}:{self.schedule}"

    @property
    def label(self) -> str:
        """A short description for the progress line."""
        where = f"{self.nfe} NFE, CFG {self.cfg:g}"
        extra = "".join(f", {name} {value}" for name, value in self.options)
        what = "Fréchet distance of " if self.frechet else ""
        taught = f", teacher {self.teacher}" if self.teacher else ""
        return f"{what}{self.method} {self.start}, {where}, seed {self.seed}{extra}{taught}"


def choice(model: str, cfg: float) -> Cell:
    """The choice of a model's teacher at a CFG."""
    return Cell(method=CHOICE, model=model, cfg=cfg)


class CellStore:
    """The folder of finished cells; it is created if needed."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.key}.json"

    def state(self, cell: Cell) -> Path:
        """Path of the training state of an unfinished cell."""
        return self.folder / f"{cell.key}.state.safetensors"

    def load(self, cell: Cell) -> Result | None:
        """Return the result of a cell, or None if it is missing or damaged."""
        try:
            return json.loads(self.path(cell).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def import_ledger(self, ledger: Path) -> None:
        """Add the results of a ledger, if it exists, that match this recipe and these weights."""
        lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.is_file() else []
        for line in lines:
            key, result = json.loads(line)
            facts = result.pop("cell")
            cell = Cell(**facts | {"options": tuple(map(tuple, facts["options"]))})
            if cell.key == key and self.load(cell) is None:
                self.save(cell, result)

    def export_ledger(self, ledger: Path, cells: Iterable[Cell]) -> None:
        """Write the finished cells among `cells` to a ledger."""
        results = [(cell.key, self.load(cell)) for cell in cells]
        lines = [canonical_json(pair) + "\n" for pair in results if pair[1] is not None]
        ledger.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(ledger, "".join(lines).encode())

    def lock(self, cell: Cell) -> Lock:
        """Return the lock that the process measuring a cell holds."""
        return Lock(self.folder / f"{cell.key}.lock")

    def save(self, cell: Cell, result: Result) -> Result:
        """Write a result, and return it together with its cell."""
        about = {"cell": asdict(cell), **result}
        write_atomic(self.path(cell), json.dumps(about, allow_nan=False).encode())
        return about


def table_data(table: SolverTable) -> dict[str, Any]:
    """Return a table as JSON values."""
    arrays = {name: array.tolist() for name, array in table.arrays.items()}
    return {key: getattr(table, key) for key in ("family", "order", "form", "space")} | arrays


def table_from(data: dict[str, Any]) -> SolverTable:
    """Rebuild a table from `table_data`."""
    own = ("family", "order", "form", "space", "sigmas", "call_sigmas", "guidance")
    coefficients = {key: value for key, value in data.items() if key not in own}
    known = {key: data[key] for key in own if key in data}
    return SolverTable(**known, coefficients=coefficients)
