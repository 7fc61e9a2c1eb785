"""Queue training jobs from configs; the job store itself is s4s_core/app/jobs.py.

`runner` is the process that runs the queue, `worker` the process that trains one job.
"""

from s4s_core.app.jobs import Job, add_job

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
