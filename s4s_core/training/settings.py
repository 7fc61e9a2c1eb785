"""Everything that decides the outcome of a run, apart from the model and the teacher."""

import math
from dataclasses import dataclass

from ..errors import ObjectiveError, TrainingError
from ..names import (
    DOMAINS,
    GRADIENT_OBJECTIVES,
    METHODS,
    OBJECTIVES,
    check_name,
    start_parts,
    start_steps,
)

_WHOLE = ("nfes", "starts", "samples", "validation", "held_out", "batch", "epochs")


@dataclass(frozen=True)
class Settings:
    """Options of `fit`; docs/training.md says what each one means.

    A budget of None is 20,000 model calls per NFE for gauss-newton, and whatever the epochs take
    for the gradient methods.
    """

    method: str = METHODS[0]
    nfes: tuple = (5,)
    seed: int = 0
    budget: int | None = None
    init: str = "auto"
    starts: int = 3
    ending: float = 0.0
    objective: str = "l2"
    samples: int = 64
    validation: int = 32
    held_out: int = 32
    batch: int = 32
    coefficients: bool = True
    times: bool = True
    fixed: bool = False
    consistent: bool = False
    central: bool = False
    rate: float = 0.005
    relax: float = 1.0
    epochs: int = 10
    domain: str = "logsnr"
    follow: str = ""
    rematerialise: bool = True
    autocast: bool = False

    def __post_init__(self):
        check_name(METHODS, "method", self.method, TrainingError)
        check_name(OBJECTIVES, "objective", self.objective, ObjectiveError)
        check_name(DOMAINS, "time domain", self.domain, TrainingError)
        if self.method == "gauss-newton" and self.objective in GRADIENT_OBJECTIVES:
            raise TrainingError(
                f"gauss-newton cannot fit the objective '{self.objective}': use l2 or lpips, "
                "or a method by gradient such as s4s."
            )
        names = _WHOLE if self.budget is None else (*_WHOLE, "budget")
        for name in names:
            values = self.nfes if name == "nfes" else (getattr(self, name),)
            if not values or not all(type(v) is int and v > 0 for v in values):
                raise TrainingError(f"The option '{name}' needs a whole number above 0.")
        if not (0 < self.rate < math.inf and 0 <= self.relax < math.inf):
            raise TrainingError("The option 'rate' lies above 0, and 'relax' not below 0.")
        if not 0 <= self.ending < math.inf:
            raise TrainingError("The option 'ending' is a noise level, not below 0.")
        if self.init != "auto":
            solver, order, _ = start_parts(self.init)
            for nfe in self.nfes:
                start_steps(solver, order, nfe, self.ending)
        if self.follow and self.method == "gauss-newton":
            raise TrainingError("The option 'follow' is for the methods by gradient.")
        if not (self.coefficients or self.times):
            raise TrainingError("There is nothing to learn without coefficients and times.")

    @classmethod
    def of(cls, options):
        """Settings from keyword arguments; an unknown one is refused by name."""
        unknown = sorted(set(options) - set(cls.__dataclass_fields__))
        if unknown:
            raise TrainingError(f"There is no training option '{unknown[0]}'.")
        return cls(**options)

    def plain(self):
        """The settings as JSON."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in vars(self).items()}
