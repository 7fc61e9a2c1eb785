"""The schedule type "S4S": the nodes of the chosen solver, for the sampler and for others."""

import importlib.util

import torch
from modules import sd_samplers

from s4s_core.hosting import host_sigmas

from . import choice

NAME = "S4S"


def sigmas(n, sigma_min, sigma_max, device):
    """The chosen solver's nodes for n steps; lengths that it lacks are interpolated."""
    return host_sigmas(choice.chosen_pack(), n).to(device, torch.float32)


def register():
    """Put the schedule on the host's list, where the host has such a list."""
    if importlib.util.find_spec("modules.sd_schedulers") is None:
        return  # hosts before A1111 1.9: there the sampler brings its nodes alone
    from modules import sd_schedulers

    made = sd_schedulers.Scheduler(NAME.lower(), NAME, sigmas)
    listed = sd_schedulers.schedulers
    listed[:] = [each for each in listed if each.name != made.name] + [made]
    sd_schedulers.schedulers_map.update({made.name: made, made.label: made})
    sd_samplers.get_sampler_and_scheduler.cache_clear()
