"""Compare: teacher, stock samplers and a solver on the same noise, as one picture and one table."""

import comfy.samplers

from . import inputs, register


class Compare:
    DESCRIPTION = (
        "One picture and one table: the teacher, stock samplers at equal model calls and the "
        "solver, from the same noise, with each one's error to the teacher and its seconds."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = ("IMAGE", "STRING")
    RETURN_NAMES = ("comparison", "table")
    OUTPUT_TOOLTIPS = ("A sheet of labelled tiles.", "The same as text, best first.")
    FUNCTION = "compare"

    @classmethod
    def INPUT_TYPES(cls):
        samplers = [n for n in comfy.samplers.KSampler.SAMPLERS if n != register.NAME]
        schedulers = [n for n in comfy.samplers.KSampler.SCHEDULERS if n != register.NAME]
        others = {
            "default": "euler, dpmpp_2m, uni_pc_bh2, ipndm",
            "tooltip": "Stock samplers to compare with, separated by commas. Names as in KSampler.",
        }
        scheduler = {"tooltip": "The noise schedule of the stock samplers."}
        steps = {
            "default": 5,
            "min": 1,
            "max": 100,
            "tooltip": "Model calls of the solver and of each stock sampler.",
        }
        return {
            "required": {
                "model": inputs.model(),
                "solver": inputs.solver(),
                "positive": inputs.positive(),
                "negative": inputs.negative(),
                "latent_image": inputs.latent("Each image of the batch is one column."),
                "seed": inputs.seed(),
                "steps": ("INT", steps),
                "cfg": inputs.cfg(),
                "samplers": ("STRING", others),
                "scheduler": (schedulers, scheduler),
                "teacher_sampler": inputs.teacher_sampler(samplers),
                "teacher_scheduler": inputs.teacher_scheduler(schedulers),
                "teacher_steps": inputs.teacher_steps(),
            },
            "optional": {"vae": inputs.vae("Shows the results as real images.")},
        }
