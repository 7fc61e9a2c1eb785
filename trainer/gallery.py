"""Pictures of a job while it trains: teacher, best classical solver and S4S on the same noise."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from s4s_core import SolverTable, sample
from s4s_core.app.jobs import sheets
from s4s_core.app.pictures import Row, save_png, sheet, thumbnail
from s4s_core.app.progress import Throttle
from s4s_core.candidates import Candidate, candidates, rank
from s4s_core.regular import make_folder
from s4s_core.teacher import Pairs, draw_pairs
from s4s_core.training.fit import Result
from s4s_core.training.task import SEARCH, TEACHER, Event

from .models.contract import TrainerModel
from .results import FRESH_SEED, if_memory_allows, makes_pictures, to_pictures

COUNT, BATCH = 6, 2
RIVALS = (("ipndm", 3), ("dpmpp", 2), ("unipc-bh2", 3))
"""Classical solvers to choose a rival from before the scores are known."""


class Gallery:
    """Writes numbered sheets of pictures into a folder; none if the model makes no pictures.

    The first event of the phase "teacher" tells the run's teacher; nothing is drawn before that.
    Pictures begin in noise, so tables for strengths are not drawn.
    """

    def __init__(self, model: TrainerModel, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.teacher: SolverTable | None = None
        self.throttle, self.enabled = Throttle(), True
        self._pairs: Pairs | None = None
        self._rivals: dict[int, Candidate] = {}
        self._drawn: dict[SolverTable, torch.Tensor] = {}
        self._last: SolverTable | None = None

    def show(self, event: Event) -> None:
        """Save a sheet of an event's table if it is new and the last sheet is a while ago.

        During the search that is the best classical solver so far.
        """
        table, nfe = event.table, event.nfe
        if event.phase == TEACHER:
            self.teacher = table
        if table is None or nfe is None or event.strength is not None or self.teacher is None:
            return
        if table == self._last or not self.throttle.ready():
            return
        self._last = table
        if event.phase == SEARCH:
            self._guarded(lambda: self._save({}, {}, {nfe: table}))
        else:
            self._guarded(lambda: self._save({nfe: table}, {}))

    def finish(self, result: Result) -> str | None:
        """Save the sheet of all NFEs; return the last one's thumbnail as a data URI, or None."""
        if isinstance(result.teacher, SolverTable):
            self.teacher = result.teacher  # a run that was finished before has no events
        tables = {nfe: result.pack[nfe] for nfe in result.pack.nfes}
        return self._guarded(lambda: self._save(tables, result.scores))

    @torch.no_grad()
    def _save(
        self,
        tables: Mapping[int, SolverTable],
        scores: Mapping[str, Mapping[str, Any]],
        searched: Mapping[int, SolverTable] | None = None,
    ) -> str | None:
        """Save a sheet and return the thumbnail of its last row.

        `tables` are learned ones; `searched` the best classical solvers of an unfinished search.
        """
        teacher = self.teacher
        if teacher is None:
            return None
        if self._pairs is None:
            if not makes_pictures(self.model):
                return None
            self._pairs = draw_pairs(self.model, teacher, COUNT, FRESH_SEED, BATCH)
        rows = [Row(f"teacher, {teacher.nfe} NFE", self._cached(teacher, self._pairs))]
        for nfe, table in (searched or {}).items():
            rows.append(self._timed_row(_label("best classical so far", nfe, None), table))
        for nfe, table in tables.items():
            score = scores.get(str(nfe), {})
            name = score.get("classical_name")
            rival = self._rival(nfe, name, self._pairs, teacher.ending)
            label = _label(rival.label, nfe, score.get("classical"))
            rows.append(Row(label, self._cached(rival.table, self._pairs)))
            rows.append(self._timed_row(_label("S4S", nfe, score.get("rmse")), table))
        make_folder(self.folder)
        number = 1 + max(sheets(self.folder), default=0)
        save_png(self.folder / f"{number:04d}.png", sheet(rows))
        return thumbnail(rows[-1].pictures)

    def _timed_row(self, label: str, table: SolverTable) -> Row:
        """Return a row of new pictures; what it takes sets the pace of the sheets."""
        assert self._pairs is not None
        began = time.monotonic()
        pictures = self._draw(table, self._pairs)
        self.throttle.took(time.monotonic() - began)
        return Row(label, pictures)

    def _cached(self, table: SolverTable, pairs: Pairs) -> torch.Tensor:
        """Return the pictures of a table that does not change, drawn once."""
        if table not in self._drawn:
            is_teacher = table is self.teacher
            self._drawn[table] = self._draw(table, pairs, pairs.target if is_teacher else None)
        return self._drawn[table]

    def _draw(
        self, table: SolverTable, pairs: Pairs, results: torch.Tensor | None = None
    ) -> torch.Tensor:
        if results is None:
            parts = pairs.batches(BATCH)
            results = torch.cat([sample(self.model.denoise, p.x, table, p.cond) for p in parts])
        pictures = to_pictures(self.model, results)
        assert pictures is not None
        return pictures

    def _rival(self, nfe: int, label: str | None, pairs: Pairs, ending: float) -> Candidate:
        """Return the classical solver of that label, or the best of RIVALS on these pairs."""
        if label is not None:
            for candidate in candidates(self.model, nfe, ending):
                if candidate.label == label:
                    return candidate
        if nfe not in self._rivals:
            tried = candidates(self.model, nfe, ending, RIVALS)
            ranked = rank(self.model.denoise, tried, pairs[:BATCH], BATCH)
            self._rivals[nfe] = ranked[0][1]
        return self._rivals[nfe]

    def _guarded(self, draw: Callable[[], str | None]) -> str | None:
        """Call `draw`; if memory does not suffice, or a sheet cannot be saved, training continues
        without pictures."""
        if not self.enabled:
            return None
        try:
            uri = if_memory_allows(draw)
        except OSError as error:
            print(f"There will be no more pictures: {error}.", flush=True)
            uri = None
        self.enabled = uri is not None
        return uri


def _label(name: str, nfe: int, error: float | None) -> str:
    return f"{name}, {nfe} NFE" + ("" if error is None else f": {error:.3f}")
