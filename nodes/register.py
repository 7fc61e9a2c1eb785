"""The name `s4s` in the host's lists of samplers and schedulers."""

import comfy.k_diffusion.sampling
import comfy.samplers

from .attach import schedule_of
from .run import sample_s4s

NAME = "s4s"


def stock_names():
    """Add the sampler and the scheduler, in place and once; a reload only renews what they run.

    The lists are shared with every node that offers them, so they grow at the end and are never
    replaced.
    """
    setattr(comfy.k_diffusion.sampling, f"sample_{NAME}", sample_s4s)
    handler = comfy.samplers.SchedulerHandler(schedule_of, use_ms=True)
    comfy.samplers.SCHEDULER_HANDLERS[NAME] = handler
    for names in (comfy.samplers.SAMPLER_NAMES, comfy.samplers.SCHEDULER_NAMES):
        if NAME not in names:
            names.append(NAME)
