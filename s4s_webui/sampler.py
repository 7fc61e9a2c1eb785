"""The sampler "S4S": the host's own k-diffusion sampler, with the core's loop inside.

It always runs on the nodes of the chosen file, whatever schedule type is set, so that there is no
wrong setting; noise, conditions, masks, refiner, previews and interrupts stay the host's.
"""

import torch
from modules import sd_samplers, sd_samplers_common, sd_samplers_kdiffusion

from s4s_core.hosting import host_sigmas, mismatches, require_space, run_in_host

from . import choice, infotext
from .checkpoint import checkpoint
from .times import exact_times, space_of

NAME = "S4S"


class Sampler(sd_samplers_kdiffusion.KDiffusionSampler):
    """What the host makes for each job."""

    def __init__(self, sd_model):
        super().__init__(self.run, sd_model)

    def get_sigmas(self, p, steps):
        """The nodes of the chosen solver; below full strength the host runs the last of them."""
        return host_sigmas(choice.chosen_pack(), steps).to(torch.float32)

    def run(self, model, x, sigmas, extra_args=None, callback=None, disable=None):
        """A k-diffusion sampler: model(x, sigma, **extra_args) is x0, guidance and masks inside."""
        pack, calls = choice.chosen_pack(), 0
        require_space(pack, space_of(model.inner_model))

        def denoise(point, sigma):
            with exact_times(model.inner_model, sigma):
                return model(point, sigma, **extra_args or {})

        def report(done):
            nonlocal calls
            calls = model.total_steps = done.nfe  # the refiner switches by this
            if callback is not None:
                level = {"sigma": done.sigma[0], "sigma_hat": done.sigma[0]}
                callback({"x": done.x, "i": done.call, "denoised": done.denoised, **level})

        result = run_in_host(denoise, x, pack, sigmas, callback=report)
        infotext.write(self.p, pack, calls)
        self.warn(pack)
        return result

    def warn(self, pack):
        """Say below the picture what differs from the solver's training."""
        p, known = self.p, checkpoint()
        if not p.is_hr_pass:
            known |= {"width": p.width, "height": p.height}
        for sentence in mismatches(pack, cfg=p.cfg_scale, **known):
            p.comment(f"S4S: {sentence}")


def register():
    """Put the sampler on the host's list, in place of one from an earlier load."""
    made = sd_samplers_common.SamplerData(NAME, Sampler, ["s4s"], {"scheduler": "s4s"})
    listed = sd_samplers.all_samplers
    listed[:] = [each for each in listed if each.name != NAME] + [made]
    sd_samplers.all_samplers_map[NAME] = made
    sd_samplers.set_samplers()
