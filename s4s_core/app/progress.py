"""How far a run is and how long it will take, for every front end."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from ..checks import between

Clock = Callable[[], float]

Count = Annotated[int, between(0, 10**15)]
Share = Annotated[float, between(0, 1)]
Seconds = Annotated[float, between(0, 1e12)]


@dataclass(frozen=True)
class Metric:
    """A line of metrics.jsonl: an event of a run. Numbers that are not finite are None.

    nfe, strength: those of the table in training. calls, seconds, progress: what the run has spent,
    and done of it; eta: seconds left.
    """

    phase: str = ""
    nfe: Count | None = None
    step: Count = 0
    loss: float | None = None
    validation: float | None = None
    calls: Count = 0
    seconds: Seconds = 0.0
    progress: Share = 0.0
    eta: Seconds | None = None
    message: str = "Starting."
    strength: Share | None = None


def duration(seconds: float) -> str:
    """Format seconds as 1:05 or 2:03:04."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class TimeLeft:
    """Estimates the seconds left from the share of the work done, as a run reports it.

    The clock starts with the first share: what came before it, in an earlier process or in this
    one, does not count.
    """

    def __init__(self, clock: Clock = time.monotonic, least: float = 0.005) -> None:
        self._clock, self._least = clock, least
        self._began = clock()
        self._first: tuple[float, float] | None = None  # the first share, and when it came
        self.share = 0.0
        """The greatest share seen, 0 to 1: progress never moves back. Set it to go on."""

    @property
    def spent(self) -> float:
        """Seconds since this object was made."""
        return self._clock() - self._began

    def update(self, share: float) -> float | None:
        """Take a share done and return the seconds left, or None while it is too early to say."""
        self.share = max(self.share, min(share, 1.0))
        if self._first is None:
            self._first = self.share, self._clock()
        first, began = self._first
        gained, seconds = self.share - first, self._clock() - began
        return seconds / gained * (1 - self.share) if gained > self._least else None


class Throttle:
    """Keeps previews from slowing a run down.

    Two previews are at least `pause` seconds apart, and `factor` times what the last one took.
    """

    def __init__(self, pause: float = 5.0, factor: float = 20.0, clock: Clock = time.monotonic):
        self.pause, self.factor, self._clock = pause, factor, clock
        self._due = -float("inf")

    def ready(self) -> bool:
        """Is it time for a preview?"""
        return self._clock() >= self._due

    def took(self, seconds: float) -> None:
        """Note what a preview took; the next one waits accordingly."""
        self._due = self._clock() + max(self.pause, self.factor * seconds)
