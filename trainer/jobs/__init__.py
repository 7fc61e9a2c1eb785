"""Queue training jobs from configs; the job store itself is s4s_core/app/jobs.py.

`runner` is the process that runs the queue, `worker` the process that trains one job.
"""

from s4s_core.app.description import SolverDescription, describe
from s4s_core.app.jobs import RESULT, Job, add_job
from s4s_core.errors import SolverFileError
from s4s_core.solver_file import load_unchanged

from ..config import TrainConfig, from_toml, rooted, to_toml


def queue_job(config: TrainConfig, start: bool = True) -> Job:
    """Queue a training job; start the runner unless told otherwise."""
    config = rooted(config)
    return add_job(
        to_toml(config),
        name=config.title,
        model=config.model.label,
        nfes=config.nfes,
        device=config.model.device,
        start=start,
    )


def job_config(job: Job) -> TrainConfig:
    """Return the config of a job."""
    return from_toml(job.config_text())


def job_solver(job: Job) -> SolverDescription | None:
    """Describe the solver that a job made; None if there is none yet."""
    try:
        return describe(load_unchanged(job.path / RESULT))
    except SolverFileError:
        return None
