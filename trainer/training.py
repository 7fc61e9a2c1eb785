"""One training run from a config: what the `train` command and a job's worker share."""

import os
from collections.abc import Callable
from dataclasses import replace

import torch

from s4s_core import SolverPack, SolverTable, fit
from s4s_core.candidates import like_named_solver, named_solver
from s4s_core.errors import ObjectiveError
from s4s_core.objectives import Objective
from s4s_core.schedules.gits import CALLS as GITS_CALLS
from s4s_core.teacher import TEACHER_NFE
from s4s_core.training.fit import Result, Run
from s4s_core.training.plan import CallPlan, plan_of
from s4s_core.training.task import Event

from .config import TrainConfig, teacher_parts
from .models.contract import TrainerModel, decoded
from .results import makes_pictures


def train(
    config: TrainConfig,
    model: TrainerModel,
    callback: Callable[[Event], None] | None = None,
    state: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Result:
    """Run fit with a config; `callback`, `state` and `cache` are fit's."""
    return fit(
        model,
        config.nfes,
        config.method,
        config.seed,
        config.calls,
        callback,
        teacher=named_teacher(config, model),
        decode=decoder_for(config, model),
        objective=config.objective,
        state=state,
        cache=cache,
        **config.options,
    )


def decoder_for(
    config: TrainConfig, model: TrainerModel
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return a function that decodes results into pictures in [-1, 1], if LPIPS needs one."""
    if not config.objective.startswith("lpips") or model.shape[0] == 3:
        return None
    if not makes_pictures(model):
        raise ObjectiveError(
            f"LPIPS compares pictures, but '{model.name}' makes none. Use --objective auto."
        )

    def decode(x: torch.Tensor) -> torch.Tensor:
        pictures = decoded(model, x)
        assert pictures is not None
        return pictures * 2 - 1

    return decode


def named_teacher(config: TrainConfig, model: TrainerModel) -> SolverTable | int:
    """Return the teacher that a config names, or the number of calls of one to be chosen."""
    parts, ending = teacher_parts(config.teacher), config.settings().ending
    return TEACHER_NFE if parts is None else named_solver(model, *parts, ending).table


def check_trainable(config: TrainConfig, model: TrainerModel, objective: Objective) -> None:
    """Raise what `fit` would refuse, such as a budget that is too small; call no model."""
    parts, settings = teacher_parts(config.teacher), config.settings()
    alike = parts and like_named_solver(model, *parts, settings.ending).table
    Run(model, settings, alike or TEACHER_NFE, objective)


def call_plan(config: TrainConfig) -> CallPlan:
    """Return the model calls that training with a config will make."""
    parts = teacher_parts(config.teacher)
    if parts is None:
        return plan_of(config.settings(), TEACHER_NFE)
    setup = GITS_CALLS if parts[0].endswith(":gits") else 0
    return CallPlan(config.settings(), parts[1], setup=setup)


def with_training_facts(
    pack: SolverPack, model: TrainerModel, config: TrainConfig, thumbnail: str | None = None
) -> SolverPack:
    """Add what the pack was trained for, and the config that reproduces it, to its metadata.

    Only the file name of a checkpoint is recorded; the rest of its path is private.
    """
    shared = replace(config.model, path=config.model.label if config.model.path else "", host="")
    about = {"name": config.title, **model.about, **pack.metadata}
    about["config"] = replace(config, model=shared).plain()
    if thumbnail:
        about["thumbnail"] = thumbnail
    return pack.described(about)
