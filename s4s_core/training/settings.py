"""Everything that decides the result of a run, apart from the model and the teacher. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from ..checks import above, between, check_fields
from ..errors import ObjectiveError, TrainingError
from ..names import (
    ALL_STEPS,
    AUTO,
    CONSISTENT,
    DEFAULT_METHOD,
    DOMAINS,
    EFFORTS,
    LAST_STEP,
    METHODS,
    OBJECTIVES,
    MethodEntry,
    check_name,
    solver_parts,
    solver_steps,
)
from ..table import MAX_NFE

_MOST = 10**12
_SEEDS = 2**43 - 1
"""Seeds of pairs are a million times larger, and must fit into 64 bits."""

STRENGTHS, STRENGTH_DIGITS = (0.01, 0.99), 4
"""The lowest and the highest strength that can be trained, and the decimals that count."""

MOST_TABLES = 200
"""The most tables of a run with strengths: a solver file cannot hold many more."""

REMOVED = {"central": False}
"""Options of earlier versions, with the only value that is still accepted (and ignored)."""

VERSION_0_1 = {
    "objective": "l2",
    "consistent": "free",
    "guidance": False,
    "neighbours": False,
    "inclusive": False,
    "samples": 64,
    "validation": 32,
    "held_out": 32,
}
"""The settings of version 0.1 where it was not told otherwise: runs that it began keep them."""


def upgraded(options: Mapping[str, Any]) -> dict[str, Any]:
    """Rewrite options of earlier versions, and drop those that change nothing."""
    known = {k: v for k, v in options.items() if k not in REMOVED or v != REMOVED[k]}
    if isinstance(known.get("consistent"), bool):
        known["consistent"] = "all" if known["consistent"] else "free"
    return known


class Goal(NamedTuple):
    """What one table is trained for: its model calls, and the strength that it begins at.

    The strength is the denoise of hosts; None is the whole way.
    """

    nfe: int
    strength: float | None = None

    @property
    def key(self) -> str:
        """The name of the goal in saved runs."""
        return str(self.nfe) if self.strength is None else f"{self.nfe}@{self.strength:g}"

    @property
    def title(self) -> str:
        """The goal in words, for progress, logs and errors."""
        if self.strength is None:
            return f"{self.nfe} steps"
        return f"{self.nfe} steps at strength {self.strength:g}"


class Sizes(NamedTuple):
    """How many pairs train, choose the best iterate (validation), and score (held out)."""

    train: int
    validation: int
    held_out: int

    @classmethod
    def of_budget(cls, budget: int) -> "Sizes":
        """Return the sizes that suit a budget: at 20 calls a pair, about a quarter of it."""
        train = _between(16, budget // 160, 96)
        return cls(train, _between(8, train // 4, 24), _between(12, budget // 200, 64))


def _between(low: int, value: int, high: int) -> int:
    return min(max(low, value), high)


@dataclass(frozen=True)
class Settings:
    """Options of `fit`. docs/training.md has the same list with more detail."""

    method: str = DEFAULT_METHOD
    """A key of names.METHODS."""
    nfes: tuple[Annotated[int, between(1, MAX_NFE)], ...] = (5,)
    """Model calls per image; one table is trained for each."""
    strengths: tuple[Annotated[float, between(*STRENGTHS)], ...] = ()
    """Strengths below 1 (the denoise of hosts) that each of the NFEs is also trained for."""
    seed: Annotated[int, between(-_SEEDS, _SEEDS)] = 0
    """Seed of the noise and the conditions of all pairs."""
    budget: Annotated[int, between(1, _MOST)] | None = None
    """All model calls of the first NFE; each further one gets 0.6 of it. None is 10,000 for
    gauss-newton, and no limit for gradient methods."""
    inclusive: bool = True
    """Does the budget include pairs, search and scoring? Otherwise it is for training alone."""
    init: str = "auto"
    """Where training starts: "auto" searches classical solvers; or a solver name."""
    starts: Annotated[int, between(1, _MOST)] = 3
    """How many classical starts Gauss-Newton trains from at most; each needs 8,000 calls."""
    ending: Annotated[float, between(0, _MOST)] = 0.0
    """The noise level at which solvers end."""
    objective: str = AUTO
    """A key of names.OBJECTIVES; "auto" is look for pictures and latents, l2 for other data."""
    samples: Annotated[int, between(0, _MOST)] = 0
    """Training pairs; 0 is as many as suit the budget."""
    validation: Annotated[int, between(0, _MOST)] = 0
    """Validation pairs: they choose the best iterate and decide when to stop. 0 as above."""
    held_out: Annotated[int, between(0, _MOST)] = 0
    """Held-out pairs: they score the result. 0 as above."""
    batch: Annotated[int, between(1, _MOST)] = 32
    """Samples per model call at most; halved when memory runs out."""
    coefficients: bool = True
    """May Gauss-Newton move the coefficients?"""
    times: bool = True
    """May Gauss-Newton move the times?"""
    fixed: bool = False
    """Ablation: one set of coefficients for all steps."""
    consistent: str = AUTO
    """Which steps' weights keep their sum, so that no grain is left: "last", "all" or "free".

    With "all" every call is also made at the node of its step: it is told the noise that is there.
    "auto" is "all" where guidance is learned, and "last" elsewhere."""
    guidance: bool = True
    """May training set the guidance of each call, if the model can be told?"""
    neighbours: bool = True
    """May Gauss-Newton also start from the learned nodes of the nearest NFEs? (init = "auto")"""
    rate: Annotated[float, above(0)] = 0.005
    """Learning rate of the gradient methods."""
    relax: Annotated[float, between(0, _MOST)] = 1.0
    """Factor on the radius of the relaxed objective; 0 is the hard objective."""
    epochs: Annotated[int, between(1, _MOST)] = 10
    """Passes over the training pairs in each phase of a gradient method."""
    domain: str = "logsnr"
    """The time variable in which gradient methods learn times; one of names.DOMAINS."""
    follow: str = ""
    """"solver:order" that coefficients are offsets to, recomputed as times move."""
    rematerialise: bool = True
    """Repeat forward passes in the backward pass to save memory."""
    autocast: bool = False
    """Train in bfloat16 on CUDA (gradient methods)."""

    def __post_init__(self) -> None:
        check_fields(self, TrainingError)
        if not self.nfes:
            raise TrainingError("nfes must name at least one step count.")
        object.__setattr__(self, "nfes", tuple(sorted(set(self.nfes))))
        strengths = {round(strength, STRENGTH_DIGITS) for strength in self.strengths}
        object.__setattr__(self, "strengths", tuple(sorted(strengths, reverse=True)))
        check_name(METHODS, "method", self.method, TrainingError)
        if self.objective != AUTO:
            check_name(OBJECTIVES, "objective", self.objective, ObjectiveError)
        check_name(CONSISTENT, "value of consistent", self.consistent, TrainingError)
        check_name(DOMAINS, "time domain", self.domain, TrainingError)
        if self.init != "auto":
            solver, order, _ = solver_parts(self.init)
            for nfe in self.nfes:
                solver_steps(solver, order, nfe, self.ending)
        if self.strengths and len(self.goals) > MOST_TABLES:
            raise TrainingError(
                f"A solver file cannot hold {len(self.goals)} tables: use at most {MOST_TABLES}, "
                "one for each step count and one more for each of its strengths."
            )
        known = OBJECTIVES.get(self.objective)
        if self.entry.needs_squares and known is not None and not known.squares:
            raise TrainingError(
                f"{self.method} cannot fit the objective '{self.objective}': use look, l2 or "
                "lpips, or a gradient method such as s4s."
            )
        if self.follow and not self.entry.needs_gradient:
            raise TrainingError("follow works with the gradient methods only.")
        if not (self.coefficients or self.times):
            raise TrainingError("There is nothing to learn: turn on coefficients or times.")

    @property
    def entry(self) -> MethodEntry:
        """What the registry says about the method."""
        return METHODS[self.method]

    def consistent_steps(self, guided: bool) -> str:
        """Return `consistent`; "auto" depends on whether the model's guidance is learned."""
        if self.consistent != AUTO:
            return self.consistent
        return ALL_STEPS if guided else LAST_STEP

    @property
    def training_order(self) -> tuple[int, ...]:
        """The NFEs in the order they are trained in.

        With `neighbours`, both ends come first, then always the middle of the widest gap, so that
        every other NFE can start from a learned one below it and one above it.
        """
        left = list(self.nfes)
        if not self.neighbours or len(left) < 3:
            return self.nfes
        order = [left[0], left[-1]]
        parts = [left[1:-1]]
        while parts:
            part = parts.pop(0)
            middle = (len(part) - 1) // 2
            order.append(part[middle])
            parts += [rest for rest in (part[:middle], part[middle + 1 :]) if rest]
        return tuple(order)

    @property
    def goals(self) -> tuple[Goal, ...]:
        """All tables to train, in order: the whole way first, then the strengths, falling."""
        return tuple(Goal(n, s) for s in (None, *self.strengths) for n in self.training_order)

    @property
    def limit(self) -> int | None:
        """The budget, or the method's default."""
        return self.budget or self.entry.default_budget

    @property
    def sizes(self) -> Sizes:
        """The pairs of each set: as told, and otherwise as they suit the budget."""
        fitting = Sizes.of_budget(self.limit or EFFORTS["normal"])
        given = self.samples, self.validation, self.held_out
        return Sizes(*(told or found for told, found in zip(given, fitting, strict=True)))

    @property
    def pairs(self) -> int:
        """How many pairs are drawn in all: each strength has its own, from the same pictures."""
        return sum(self.sizes) * (1 + len(self.strengths))

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Settings":
        """Make settings from keyword arguments; raise TrainingError for an unknown one."""
        options = upgraded(options)
        unknown = sorted(set(options) - set(cls.__dataclass_fields__))
        if unknown:
            raise TrainingError(f"There is no training option '{unknown[0]}'.")
        return cls(**options)

    def plain(self) -> dict[str, Any]:
        """Return the settings as JSON."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in vars(self).items()}
