"""How many model calls a training run makes, how much of them is done, and what to say of it."""

from typing import Any

from ..candidates import KEPT, search_calls
from ..names import AUTO
from ..schedules.gits import CALLS as GITS_CALLS
from ..training.method import find_method
from ..training.settings import Settings
from ..training.task import Event
from .progress import TimeLeft


class CallPlan:
    """The model calls that a run will make at most, by stage and NFE.

    teacher_nfe: the teacher's model calls per pair. teacher_setup: model calls made to build the
    teacher itself, such as those that measure a GITS schedule.
    """

    def __init__(self, settings: Settings, teacher_nfe: int, teacher_setup: int = 0) -> None:
        nfes, self.order = settings.nfes, settings.training_order
        pairs = settings.samples + settings.validation + settings.held_out
        self.teacher_nfe, self.teacher_setup = teacher_nfe, teacher_setup
        self.teacher = teacher_setup + pairs * teacher_nfe
        searched = settings.init == AUTO
        self.before: dict[int, int] = {n: search_calls(n) if searched else 0 for n in nfes}
        if settings.init.endswith(":gits"):
            self.before[nfes[0]] += GITS_CALLS
        self.method = find_method(settings.method)
        self.fitting = {n: self.method.planned_calls(settings, n) for n in nfes}
        scored = KEPT + 2 + 2 * settings.neighbours * (len(nfes) > 1) if searched else 3
        self.after: dict[int, int] = {n: n * settings.held_out * scored for n in nfes}

    @property
    def total(self) -> int:
        parts = (self.before, self.fitting, self.after)
        return self.teacher + sum(sum(part.values()) for part in parts)

    @property
    def judged(self) -> float:
        """How often training computes the objective, counted per sample as model calls are."""
        return sum(self.method.judged_results(n, calls) for n, calls in self.fitting.items())

    def share(self, event: Event) -> float:
        """Return the share of all calls done at an event, 0 to 1."""
        if event.phase == "teacher":
            drawn = (self.teacher - self.teacher_setup) * event.step / event.total
            return (self.teacher_setup + drawn) / self.total
        assert event.nfe is not None
        calls = self.teacher + self.before[event.nfe] + event.done * self.fitting[event.nfe]
        for nfe in self.order[: self.order.index(event.nfe)]:
            calls += self.before[nfe] + self.fitting[nfe] + self.after[nfe]
        return min(1.0, calls / self.total)


def event_message(event: Event) -> str:
    """Describe an event in a few words."""
    if event.phase == "teacher":
        return f"Rendering teacher samples: {event.step} of {event.total}"
    return f"{event.nfe} steps, iteration {event.step}: error {event.validation:.4g}"


class RunProgress:
    """Turns the events of a run into lines of metrics, with the share done and the time left.

    seconds: what earlier processes have spent on the same run.
    """

    def __init__(self, plan: CallPlan, seconds: float = 0.0) -> None:
        self.plan, self.before, self.time_left = plan, seconds, TimeLeft()

    def line(self, event: Event) -> dict[str, Any]:
        """Return an event as a line of metrics.jsonl."""
        eta = self.time_left.update(self.plan.share(event))
        return {
            "phase": event.phase,
            "nfe": event.nfe,
            "step": event.step,
            "loss": event.loss,
            "validation": event.validation,
            "calls": event.calls,
            "seconds": round(self.before + self.time_left.spent, 3),
            "progress": round(self.time_left.share, 4),
            "eta": None if eta is None else round(eta, 1),
            "message": event_message(event),
        }
