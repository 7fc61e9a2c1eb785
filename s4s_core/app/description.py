"""A solver described as facts; nodes, sidebar, panel, WebUI and commands only format them.

Files come from strangers: text is bounded, numbers are numbers, and values of an unexpected type
are left out. Whoever shows a text must still escape it.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..atomic import StrPath
from ..errors import SolverFileError
from ..names import MEASURES
from ..solver_file import file_stamp, load_solver_bytes, read_solver
from ..table import SolverPack, SolverTable
from .folders import MAX_LISTED

LONGEST_TEXT = 300

TITLES = {
    "rmse": "Error",
    "median": "Median error",
    "bands": "Look (frequency bands)",
    "lpips": "Look (LPIPS)",
}
"""The names of measures; the score "look" is one of the last two."""

Facts = dict[str, Any]
"""Text and numbers by name, one level deep."""


@dataclass(frozen=True)
class Measure:
    """One score of a table, and of the classical solver that is best by it.

    name: a key of TITLES. ratio: ours divided by theirs; below 1 is better. `classical` and `ratio`
    are None if they are unknown.
    """

    name: str
    ours: float
    classical: float | None
    ratio: float | None

    @property
    def title(self) -> str:
        return TITLES[self.name]


@dataclass(frozen=True)
class Part:
    """A table for runs below full strength: it begins at a noise level.

    name: as in files, "5@1.161". strength: the denoise of hosts, if the file says it.
    """

    name: str
    nfe: int
    level: float
    strength: float | None

    @property
    def begins(self) -> tuple[str, str]:
        """Where it begins, as text: what kind of number, and the number."""
        if self.strength is None:
            return "noise level", f"{self.level:.6g}"
        return "strength", f"{self.strength:g}"

    @property
    def title(self) -> str:
        return f"{self.nfe} steps at {' '.join(self.begins)}"


@dataclass(frozen=True)
class SolverDescription:
    """What a solver file says about itself.

    `scores`, `ratios` (those of the RMSE) and `measures` are by the names of tables: "5", and parts
    such as "5@1.161".
    """

    name: str | None
    notes: str | None
    model: Facts
    space: str
    nfes: list[int]
    parts: list[Part]
    cfg: list[float] | None
    resolution: list[float] | None
    teacher: Facts
    training: Facts
    scores: dict[str, Facts]
    ratios: dict[str, float | None]
    measures: dict[str, list[Measure]]
    sha256: str
    thumbnail: str | None

    @property
    def title(self) -> str:
        return self.name or "Unnamed solver"

    def plain(self) -> dict[str, Any]:
        """Return the description as JSON-able data."""
        measures = {name: [dict(vars(m)) for m in known] for name, known in self.measures.items()}
        parts = [dict(vars(part)) for part in self.parts]
        return vars(self) | {"measures": measures, "parts": parts}

    @property
    def titles(self) -> dict[str, str]:
        """What to call each table, by its name: "5 steps", "5 steps at strength 0.5"."""
        whole = {str(nfe): f"{nfe} steps" for nfe in self.nfes}
        return whole | {part.name: part.title for part in self.parts}

    def facts(self) -> dict[str, str]:
        """Return what an artist wants to know, as text by label; what is unknown is left out."""
        teacher, calls = self.teacher, self.training.get("calls")
        facts = {
            "Model": self.model.get("name"),
            "Steps": ", ".join(map(str, self.nfes)),
            "CFG": self.cfg and " to ".join(dict.fromkeys(f"{value:g}" for value in self.cfg)),
            "Size": self.resolution and " x ".join(f"{side:g}" for side in self.resolution),
            "Teacher": teacher.get("nfe") and f"{_teacher_name(teacher)}, {teacher['nfe']} calls",
            **{f"{TITLES[name]} / best classical solver": self._shares(name) for name in TITLES},
            "Image-to-image": self._parts(),
            "Image-to-image error / best classical solver": self._part_shares(),
            "Training": f"{calls:,} model calls" if isinstance(calls, int | float) else None,
            "Notes": self.notes,
        }
        return {label: str(text) for label, text in facts.items() if text}

    def _shares(self, name: str) -> str:
        """Return the whole tables' ratios of one measure as text, or "" if none is known."""
        return ", ".join(
            f"{measure.ratio:.0%} at {nfe} steps"
            for nfe in self.nfes
            for measure in self.measures[str(nfe)]
            if measure.name == name and measure.ratio is not None
        )

    def _parts(self) -> str:
        """Return where parts begin, and their steps, as text; "" if there are none."""
        steps: dict[tuple[str, str], list[str]] = {}
        for part in self.parts:
            steps.setdefault(part.begins, []).append(str(part.nfe))
        alike: dict[tuple[str, str], list[str]] = {}
        for (kind, value), nfes in steps.items():
            alike.setdefault((kind, ", ".join(nfes)), []).append(value)
        return "; ".join(
            f"{kind} {', '.join(values)} at {nfes} steps" for (kind, nfes), values in alike.items()
        )

    def _part_shares(self) -> str:
        """Return the ratios of the parts' errors as text, or "" if none is known."""
        shares: dict[tuple[str, str], list[str]] = {}
        for part in self.parts:
            ratio = self.ratios[part.name]
            if ratio is not None:
                shares.setdefault(part.begins, []).append(f"{ratio:.0%} at {part.nfe} steps")
        return "; ".join(f"{' '.join(begins)}: {', '.join(s)}" for begins, s in shares.items())


def _teacher_name(teacher: Facts) -> str:
    return str(teacher.get("name") or teacher.get("family") or "unnamed")


def _text(value: object) -> str | None:
    return value[:LONGEST_TEXT] if isinstance(value, str) else None


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _flat(mapping: object) -> Facts:
    """Return the text and numbers of an object, one level deep."""
    if not isinstance(mapping, dict):
        return {}
    known = {key[:60]: _text(v) if isinstance(v, str) else _number(v) for key, v in mapping.items()}
    return {key: value for key, value in list(known.items())[:30] if value is not None}


def _measures(scores: Facts, look: str) -> Iterator[Measure]:
    """Yield the measures of one table; `look` is the name of the score "look"."""
    for key, (_, theirs) in MEASURES.items():
        ours, classical = _score(scores.get(key)), _score(scores.get(theirs))
        if ours is not None:
            ratio = ours / classical if classical else math.inf
            name = look if key == "look" else key
            yield Measure(name, ours, classical, ratio if math.isfinite(ratio) else None)


def _score(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and number >= 0 else None


def _part(table: SolverTable, scores: Facts) -> Part:
    strength = _number(scores.get("strength"))
    known = strength is not None and 0 < strength < 1
    return Part(table.part_name, table.nfe, float(table.sigmas[0]), strength if known else None)


def _error_ratio(measures: list[Measure]) -> float | None:
    return next((measure.ratio for measure in measures if measure.name == "rmse"), None)


def describe(pack: SolverPack) -> SolverDescription:
    """Describe a pack."""
    about = pack.metadata
    scores = {name: _flat(about.get("scores", {}).get(name)) for name in pack.named}
    training = _flat(about.get("training"))
    look = "lpips" if str(training.get("objective")).startswith("lpips") else "bands"
    measures = {name: list(_measures(known, look)) for name, known in scores.items()}
    return SolverDescription(
        name=_text(about.get("name")),
        notes=_text(about.get("notes")),
        model=_flat(about.get("model")),
        space=pack.space,
        nfes=list(pack.nfes),
        parts=[_part(table, scores[table.part_name]) for table in pack.parts],
        cfg=list(about["cfg"]) if "cfg" in about else None,
        resolution=list(about["resolution"]) if "resolution" in about else None,
        teacher=_flat(about.get("teacher")),
        training=training,
        scores=scores,
        ratios={name: _error_ratio(known) for name, known in measures.items()},
        measures=measures,
        sha256=pack.digest,
        thumbnail=about.get("thumbnail"),
    )


@lru_cache(maxsize=2 * MAX_LISTED)
def _summary(path: str, stamp: tuple[int, ...]) -> dict[str, Any]:
    data = read_solver(path)  # an error is not remembered: it may pass
    try:
        found = describe(load_solver_bytes(data, path)).plain()
    except SolverFileError as error:
        return {"error": str(error)}
    return found | {"error": None, "thumbnail": found["thumbnail"] is not None}


def summary(path: StrPath) -> dict[str, Any]:
    """Return a file's description as JSON-able data, with "thumbnail" only as whether there is one.

    "error" is what is wrong with the file, alone, or None. The file is read again only if it has
    changed.
    """
    path = os.fspath(path)  # text is hashed faster
    try:
        return _summary(path, file_stamp(path))
    except SolverFileError as error:
        return {"error": str(error)}


def describe_table(pack: SolverPack, nfe: int) -> dict[str, Any]:
    """Return one table of a pack as JSON-able data: what it is, its times and coefficients.

    "guidance" is None where the table leaves it as the artist sets it.
    """
    table = pack[nfe]
    return {
        "family": table.family,
        "order": table.order,
        "form": table.form,
        "space": table.space,
        "ending": table.ending,
        "nfe": table.nfe,
        "sigmas": table.sigmas.tolist(),
        "call_sigmas": table.call_sigmas.tolist(),
        "guidance": None if table.guidance is None else table.guidance.tolist(),
        "coefficients": {name: array.tolist() for name, array in table.coefficients.items()},
    }
