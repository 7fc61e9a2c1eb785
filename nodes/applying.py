"""The three ways to sample with a solver: on the MODEL, as SAMPLER + SIGMAS, or all in one."""

import comfy.samplers
from comfy_execution.validation import validate_node_input

from ..s4s_core.errors import HostError
from . import inputs, library, notices, run
from .attach import attached, scheduler_sigmas

NOT_WHOLE = "Steps must be a whole number above 0."


class ApplySolver:
    DESCRIPTION = (
        "Puts a solver on the model. Then any KSampler uses it: choose sampler s4s and scheduler "
        "s4s, and one of the solver's numbers of steps."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = ("MODEL",)
    OUTPUT_TOOLTIPS = ("The model with the solver on it; the model that came in is unchanged.",)
    FUNCTION = "apply"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {"model": inputs.model(), "solver": inputs.solver()},
            "hidden": {"extra_pnginfo": "EXTRA_PNGINFO"},
        }

    def apply(self, model, solver, extra_pnginfo=None):
        notices.record(extra_pnginfo, solver)
        return (attached(model, solver),)


class SamplerS4S:
    DESCRIPTION = (
        "A solver as SAMPLER and SIGMAS, for SamplerCustom and SamplerCustomAdvanced. Use both "
        "outputs together."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = ("SAMPLER", "SIGMAS", "INT")
    RETURN_NAMES = ("sampler", "sigmas", "steps")
    OUTPUT_TOOLTIPS = (
        "The solver as a sampler.",
        "The noise levels that the solver learned for these steps.",
        "The number of steps.",
    )
    FUNCTION = "build"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "solver": inputs.solver(),
                "steps": steps_input(),
                "denoise": inputs.denoise(),
            },
            "hidden": {"extra_pnginfo": "EXTRA_PNGINFO"},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, steps, input_types):
        return check_wires(cls, input_types) or check_steps(steps)

    def build(self, solver, steps, denoise, extra_pnginfo=None):
        notices.record(extra_pnginfo, solver)
        steps = whole(steps)
        sampler = comfy.samplers.KSAMPLER(run.sampler_of(solver))
        return sampler, scheduler_sigmas(solver, steps, denoise), steps


class KSamplerS4S:
    DESCRIPTION = (
        "Samples with a learned solver: few steps, close to what a long run would give. The steps "
        "are those that the solver was trained for."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = ("LATENT",)
    OUTPUT_TOOLTIPS = ("The denoised latent.",)
    FUNCTION = "sample"

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "model": inputs.model(),
                "solver": inputs.solver(),
                "seed": inputs.seed(),
                "steps": steps_input(),
                "cfg": inputs.cfg(),
                "positive": inputs.positive(),
                "negative": inputs.negative(),
                "latent_image": inputs.latent(),
                "denoise": inputs.denoise(),
            },
            "hidden": {"extra_pnginfo": "EXTRA_PNGINFO"},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, steps, input_types):
        return check_wires(cls, input_types) or check_steps(steps)

    def sample(
        self,
        model,
        solver,
        seed,
        steps,
        cfg,
        positive,
        negative,
        latent_image,
        denoise,
        extra_pnginfo=None,
    ):
        notices.record(extra_pnginfo, solver)
        model, prompts = attached(model, solver), (positive, negative)
        return run.ksampler(model, seed, whole(steps), cfg, *prompts, latent_image, denoise)


def steps_input():
    """Steps as a list: all that any file holds; the page narrows it to the connected solver's."""
    tooltip = "Model calls. Only the numbers that the solver was trained for can be used."
    numbers = library.all_nfes()
    return numbers, {"default": 5 if 5 in numbers else numbers[0], "tooltip": tooltip}


def check_wires(node, input_types):
    """What is wrong with the types that are wired to a node; None if nothing is.

    The host leaves them to a node that asks for them: here, so that `steps` takes an INT too.
    """
    for name, (kind, _) in node.INPUT_TYPES()["required"].items():
        kinds = (kind, "COMBO", "INT") if name == "steps" else (kind,)
        wired = input_types.get(name)
        if wired is not None and not any(validate_node_input(wired, one) for one in kinds):
            return f"The input {name} takes {'INT' if name == 'steps' else kind}, not {wired}."
    return None


def check_steps(steps):
    """True, or what is wrong: any number above 0 is let through, since solvers come by wire.

    None stands for a number that comes by wire itself.
    """
    return steps is None or _is_whole(steps) or NOT_WHOLE


def whole(steps):
    """Steps as a number; HostError, in a sentence, where a wire brought something else."""
    if not _is_whole(steps):
        raise HostError(NOT_WHOLE)
    return int(steps)


def _is_whole(steps):
    return str(steps).isdecimal() and int(steps) > 0
