"""What to say of a training run while it goes on: how far it is, and how long it will take."""

import math

from ..training.plan import CallPlan
from ..training.task import CHOICE, SCORING, SEARCH, TEACHER, Event
from .progress import Metric, TimeLeft


def event_message(event: Event) -> str:
    """Describe an event in a few words."""
    if event.phase == CHOICE:
        return f"Choosing the teacher: {event.step} of {event.total} measured"
    if event.phase == TEACHER:
        return f"Rendering teacher samples: {event.step} of {event.total}"
    assert event.goal is not None  # all other phases have one
    title = event.goal.title
    if event.phase == SEARCH:
        return f"{title}: classical solvers, run {event.step} of at most {event.total}"
    if event.phase == SCORING:
        return f"{title}: scoring on new noise, {event.step} of {event.total}"
    return f"{title}, iteration {event.step}: error {event.validation:.4g}"


class RunProgress:
    """Turns the events of a run into lines of metrics, with the share done and the time left.

    seconds, share: what earlier processes have spent on the same run, and done of it.
    """

    def __init__(self, plan: CallPlan, seconds: float = 0.0, share: float = 0.0) -> None:
        self.plan, self.before, self.time_left = plan, seconds, TimeLeft()
        self.time_left.share = share

    def line(self, event: Event) -> Metric:
        """Return an event as a line of metrics."""
        eta = self.time_left.update(self.plan.share(event))
        return Metric(
            phase=event.phase,
            nfe=event.nfe,
            strength=event.strength,
            step=event.step,
            loss=_finite(event.loss),
            validation=_finite(event.validation),
            calls=event.calls,
            seconds=round(self.before + self.time_left.spent, 3),
            progress=round(self.time_left.share, 4),
            eta=None if eta is None else round(eta, 1),
            message=event_message(event),
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
