"""A solver described as facts; nodes, sidebar, panel, WebUI and commands only format them.

Files come from strangers: text is bounded, numbers are numbers, and values of an unexpected type
are left out. Whoever shows a text must still escape it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..table import SolverPack

LONGEST_TEXT = 300

Facts = dict[str, Any]
"""Text and numbers by name, one level deep."""


@dataclass(frozen=True)
class SolverDescription:
    """What a solver file says about itself. `ratios` are `error_ratio` by NFE."""

    name: str | None
    notes: str | None
    model: Facts
    space: str
    nfes: list[int]
    cfg: list[float] | None
    resolution: list[float] | None
    teacher: Facts
    training: Facts
    scores: dict[str, Facts]
    ratios: dict[str, float | None]
    sha256: str
    thumbnail: str | None

    @property
    def title(self) -> str:
        return self.name or "Unnamed solver"

    def plain(self) -> dict[str, Any]:
        """Return the description as JSON-able data."""
        return dict(vars(self))

    def facts(self) -> dict[str, str]:
        """Return what an artist wants to know, as text by label; what is unknown is left out."""
        teacher, calls = self.teacher, self.training.get("calls")
        facts = {
            "Model": self.model.get("name"),
            "Steps": ", ".join(map(str, self.nfes)),
            "CFG": self.cfg and " to ".join(dict.fromkeys(f"{value:g}" for value in self.cfg)),
            "Size": self.resolution and " x ".join(f"{side:g}" for side in self.resolution),
            "Teacher": teacher.get("nfe") and f"{_teacher_name(teacher)}, {teacher['nfe']} calls",
            "Error / best classical solver": self._shares(),
            "Training": f"{calls:,} model calls" if isinstance(calls, int | float) else None,
            "Notes": self.notes,
        }
        return {label: str(text) for label, text in facts.items() if text}

    def _shares(self) -> str:
        known = {nfe: ratio for nfe, ratio in self.ratios.items() if ratio is not None}
        return ", ".join(f"{ratio:.0%} at {nfe} steps" for nfe, ratio in known.items())


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


def error_ratio(scores: Mapping[str, Any]) -> float | None:
    """Return the solver's RMSE divided by the best classical one's; None if it is unknown."""
    ours, theirs = _number(scores.get("rmse")), _number(scores.get("classical"))
    ratio = ours / theirs if ours is not None and theirs else math.inf
    return ratio if math.isfinite(ratio) else None


def describe(pack: SolverPack) -> SolverDescription:
    """Describe a pack."""
    about = pack.metadata
    scores = {str(n): _flat(about.get("scores", {}).get(str(n))) for n in pack.nfes}
    return SolverDescription(
        name=_text(about.get("name")),
        notes=_text(about.get("notes")),
        model=_flat(about.get("model")),
        space=pack.space,
        nfes=list(pack.nfes),
        cfg=list(about["cfg"]) if "cfg" in about else None,
        resolution=list(about["resolution"]) if "resolution" in about else None,
        teacher=_flat(about.get("teacher")),
        training=_flat(about.get("training")),
        scores=scores,
        ratios={nfe: error_ratio(known) for nfe, known in scores.items()},
        sha256=pack.digest,
        thumbnail=about.get("thumbnail"),
    )


def describe_table(pack: SolverPack, nfe: int) -> dict[str, Any]:
    """Return one table of a pack as JSON-able data: what it is, its times and coefficients."""
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
        "coefficients": {name: array.tolist() for name, array in table.coefficients.items()},
    }
