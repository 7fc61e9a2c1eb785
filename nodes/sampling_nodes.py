"""Three ways to sample with a solver: on the MODEL, as SAMPLER and SIGMAS, or all in one node."""

from typing import Any

import comfy.samplers
import torch
from comfy_execution.validation import validate_node_input

from ..s4s_core.app.comfyui import CONDITIONING, LATENT, MODEL, SAMPLER
from ..s4s_core.table import SolverPack
from . import files, inputs, notices, sampler
from .inputs import Input, InputTypes


class ApplySolver:
    DESCRIPTION = (
        "Applies a solver to the model. Any KSampler then uses it: choose the sampler s4s, the "
        "scheduler s4s and one of the solver's step counts. Below full denoise, any number of "
        "steps works."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = ("MODEL",)
    OUTPUT_TOOLTIPS = ("A copy of the model with the solver applied.",)
    FUNCTION = "apply"

    @classmethod
    def INPUT_TYPES(cls) -> InputTypes:
        return {
            "required": {"model": inputs.model(), "solver": inputs.solver()},
            "hidden": {"extra_pnginfo": "EXTRA_PNGINFO"},
        }

    def apply(
        self, model: MODEL, solver: SolverPack, extra_pnginfo: dict[str, Any] | None = None
    ) -> tuple[MODEL]:
        notices.record_solver(extra_pnginfo, solver)
        return (sampler.attach_solver(model, solver),)


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
        "The noise levels that the solver learned for this step count; below full denoise, where "
        "it begins and how many calls it makes.",
        "The step count.",
    )
    FUNCTION = "build"

    @classmethod
    def INPUT_TYPES(cls) -> InputTypes:
        return {
            "required": {
                "solver": inputs.solver(),
                "steps": steps_input(),
                "denoise": inputs.denoise(),
            },
            "optional": {
                "model": inputs.model(
                    "Needed below full denoise: says at which noise level a run begins."
                )
            },
            "hidden": {"extra_pnginfo": "EXTRA_PNGINFO"},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, steps: object, input_types: dict[str, str]) -> bool | str:
        return check_links(cls, input_types) or inputs.validate(inputs.parse_steps, steps)

    def build(
        self,
        solver: SolverPack,
        steps: object,
        denoise: float,
        model: MODEL | None = None,
        extra_pnginfo: dict[str, Any] | None = None,
    ) -> tuple[SAMPLER, torch.Tensor, int]:
        notices.record_solver(extra_pnginfo, solver)
        count = inputs.parse_steps(steps)
        made = comfy.samplers.KSAMPLER(sampler.sampler_function(solver))
        return made, sampler.solver_sigmas(solver, count, denoise, model), count


class KSamplerS4S:
    DESCRIPTION = (
        "Samples with a learned solver: few steps, close to the result of a long run. Offers the "
        "step counts that the solver was trained for."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = ("LATENT",)
    OUTPUT_TOOLTIPS = ("The denoised latent.",)
    FUNCTION = "sample"

    @classmethod
    def INPUT_TYPES(cls) -> InputTypes:
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
    def VALIDATE_INPUTS(cls, steps: object, input_types: dict[str, str]) -> bool | str:
        return check_links(cls, input_types) or inputs.validate(inputs.parse_steps, steps)

    def sample(
        self,
        model: MODEL,
        solver: SolverPack,
        seed: int,
        steps: object,
        cfg: float,
        positive: CONDITIONING,
        negative: CONDITIONING,
        latent_image: LATENT,
        denoise: float,
        extra_pnginfo: dict[str, Any] | None = None,
    ) -> tuple[LATENT]:
        notices.record_solver(extra_pnginfo, solver)
        model, count = sampler.attach_solver(model, solver), inputs.parse_steps(steps)
        prompts = positive, negative
        return (sampler.ksample(model, seed, count, cfg, *prompts, latent_image, denoise),)


def steps_input() -> Input:
    """The step counts of all solver files; the page narrows them to the connected solver's."""
    tooltip = "Model calls. Only step counts that the solver was trained for can be used."
    counts = files.all_step_counts()
    return counts, {"default": 5 if 5 in counts else counts[0], "tooltip": tooltip}


def check_links(node: type[SamplerS4S | KSamplerS4S], input_types: dict[str, str]) -> str | None:
    """Return what is wrong with the types linked to a node, or None.

    ComfyUI leaves this to nodes that ask for `input_types`; here it lets `steps` take an INT too.
    """
    asked = node.INPUT_TYPES()
    for name, (kind, _) in (asked["required"] | asked.get("optional", {})).items():
        kinds = (kind, "COMBO", "INT") if name == "steps" else (kind,)
        linked = input_types.get(name)
        if linked is not None and not any(validate_node_input(linked, one) for one in kinds):
            return f"The input {name} takes {'INT' if name == 'steps' else kind}, not {linked}."
    return None
