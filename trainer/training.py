"""One training run from a config: what the `train` command and a job's worker share."""

import time
from dataclasses import replace

from s4s_core import SolverPack, fit
from s4s_core.candidates import AUTO_SCHEDULES, AUTO_SOLVERS, named_solver
from s4s_core.errors import ObjectiveError
from s4s_core.schedules.gits import CALLS as GITS_CALLS
from s4s_core.teacher import TEACHER_NFE, default_teacher
from s4s_core.training.method import find_method

from .config import teacher_parts
from .pictures import can_show


def train(config, model, listen=None, state=None, cache=None, teacher=None):
    """fit's Result for a config; `listen`, `state` and `cache` are those of fit.

    teacher: the table of `teacher_of`, from who needs it elsewhere too: one on gits is measured.
    """
    return fit(
        model,
        config.nfes,
        config.method,
        config.seed,
        config.calls,
        listen,
        teacher=teacher or teacher_of(config, model),
        decode=decoder_of(config, model),
        objective=config.objective,
        state=state,
        cache=cache,
        **config.options,
    )


def decoder_of(config, model):
    """What makes pictures in [-1, 1] of results for LPIPS; None where nothing is to be decoded."""
    if not config.objective.startswith("lpips") or model.shape[0] == 3:
        return None
    if not can_show(model):
        raise ObjectiveError(
            f"LPIPS compares pictures, and the model '{model.name}' makes none: "
            "use the objective 'l2'."
        )
    return lambda x: model.decode(x) * 2 - 1


def teacher_of(config, model):
    """The table of the teacher that a config names."""
    parts, ending = teacher_parts(config.teacher), config.settings().ending
    if parts is None:
        return default_teacher(model, ending=ending)
    return named_solver(model, *parts, ending).table


def described(pack, model, config, thumbnail=None):
    """The pack with what it was trained for, and all that repeats it, in its header.

    Of a checkpoint only the file's name is told: the rest of its path is nobody's business.
    """
    shared = replace(config.model, path=config.model.label if config.model.path else "", host="")
    about = {"name": config.title, **model.about, **pack.metadata}
    about["config"] = replace(config, model=shared).plain()
    if thumbnail:
        about["thumbnail"] = thumbnail
    return SolverPack(pack.tables, about)


class Plan:
    """Model calls that a run will make, as far as they are known: (teacher's, per NFE)."""

    def __init__(self, config):
        settings, parts = config.settings(), teacher_parts(config.teacher)
        pairs = settings.samples + settings.validation + settings.held_out
        self.teacher_nfe = parts[1] if parts else TEACHER_NFE
        self.first = GITS_CALLS if parts and parts[0].endswith(":gits") else 0
        self.teacher = self.first + pairs * self.teacher_nfe
        tried = len(AUTO_SOLVERS) * len(AUTO_SCHEDULES) if settings.init == "auto" else 0
        self.before = {n: n * 16 * tried for n in config.nfes}
        if settings.init.endswith(":gits"):
            self.before[config.nfes[0]] += GITS_CALLS
        self.method = find_method(settings.method)
        self.fitting = {n: self.method.planned_calls(settings, n) for n in config.nfes}
        self.after = {n: n * settings.held_out * (10 if tried else 3) for n in config.nfes}

    @property
    def total(self):
        parts = (self.before, self.fitting, self.after)
        return self.teacher + sum(sum(part.values()) for part in parts)

    @property
    def judged(self):
        """How often training computes the objective, counted per sample as model calls are."""
        return sum(self.method.judged_results(n, calls) for n, calls in self.fitting.items())

    def share(self, event):
        """How much of the whole is done at an event, 0 to 1."""
        if event.phase == "teacher":
            drawn = (self.teacher - self.first) * event.step / event.total
            return (self.first + drawn) / self.total
        calls = self.teacher + self.before[event.nfe] + event.done * self.fitting[event.nfe]
        for nfe in self.fitting:
            if nfe < event.nfe:
                calls += self.before[nfe] + self.fitting[nfe] + self.after[nfe]
        return min(1.0, calls / self.total)


class Course:
    """Turns fit's events into lines of metrics: share done, time left, and a word for people.

    `seconds` are those that earlier processes of the same run have spent.
    """

    def __init__(self, config, seconds=0.0):
        self.plan, self.before, self.began = Plan(config), seconds, time.monotonic()
        self.first = self.share = None

    def line(self, event):
        spent, share = time.monotonic() - self.began, self.plan.share(event)
        self.first = share if self.first is None else self.first
        self.share = max(share, self.share or 0.0)
        gained = self.share - self.first
        return {
            "phase": event.phase,
            "nfe": event.nfe,
            "step": event.step,
            "loss": event.loss,
            "validation": event.validation,
            "calls": event.calls,
            "seconds": round(self.before + spent, 3),
            "progress": round(self.share, 4),
            "eta": round(spent / gained * (1 - self.share), 1) if gained > 0.005 else None,
            "message": _message(event),
        }


def _message(event):
    if event.phase == "teacher":
        return f"The teacher renders what to learn from: {event.step} of {event.total}."
    return f"{event.nfe} NFE, step {event.step}: error {event.validation:.4g}"
