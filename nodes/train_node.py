"""Train Solver: trains in the graph, on the model as it is wired."""

from typing import Any

import torch

from ..s4s_core.app.comfyui import CLIP, CONDITIONING, LATENT, MODEL, SAMPLER, VAE
from ..s4s_core.names import EFFORTS, PART_SHARE, efforts_text
from . import inputs
from .inputs import InputTypes
from .notices import Graph
from .training import TeacherChoice, TrainingRun, encode_prompts


class TrainSolver:
    DESCRIPTION = (
        "Trains a solver for this model with its LoRAs, ControlNets, guidance and size. Needs no "
        "more memory than sampling. Cancel with the stock button; queue it again to resume."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = (inputs.SOLVER, "IMAGE", "STRING")
    RETURN_NAMES = ("solver", "preview", "report")
    OUTPUT_TOOLTIPS = (
        "The trained solver, for Save Solver, Apply Solver or KSampler (S4S).",
        "Images of the teacher, the best classical solver and the trained solver, on new noise.",
        "A report: how close the solver comes to the teacher.",
    )
    FUNCTION = "train"

    @classmethod
    def INPUT_TYPES(cls) -> InputTypes:
        return {
            "required": {
                "model": inputs.model(),
                "positive": inputs.positive(),
                "negative": inputs.negative(),
                "latent_image": inputs.latent("The solver is trained for this latent's size."),
                "cfg": inputs.cfg(),
                "nfes": (
                    "STRING",
                    {
                        "default": "5",
                        "tooltip": "Step counts to train for, such as 5 or 4,5,6,8. Each gets its "
                        "own table; all go into one solver.",
                    },
                ),
                "effort": (
                    list(EFFORTS),
                    {
                        "default": "quick",
                        "tooltip": f"All that training spends. {efforts_text()}. Time is about "
                        "the model calls divided by the it/s that ComfyUI shows.",
                    },
                ),
                "teacher_sampler": inputs.teacher_sampler(),
                "teacher_scheduler": inputs.teacher_scheduler(),
                "teacher_steps": inputs.teacher_steps(),
                # a seed that changed by itself would start over instead of resuming
                "seed": inputs.seed("The random seed of the training noise.", changes=False),
            },
            "optional": {
                "vae": inputs.vae("Shows the previews as real images."),
                "clip": ("CLIP", {"tooltip": "Encodes the extra prompts."}),
                "prompts": (
                    "STRING",
                    {
                        "default": "",
                        "multiline": True,
                        "tooltip": "Extra prompts to train on, one per line, encoded with the "
                        "connected CLIP. More variety makes a more general solver.",
                    },
                ),
                "teacher": (
                    "SAMPLER",
                    {"tooltip": "Your own teacher, instead of the sampler chosen above."},
                ),
                "teacher_sigmas": (
                    "SIGMAS",
                    {"tooltip": "The teacher's noise levels, instead of the scheduler above."},
                ),
                "strengths": (
                    "STRING",
                    {
                        "default": "",
                        "tooltip": "Also train for img2img, detailers and hires fix: denoise "
                        "values below 1, such as 0.3, 0.5, 0.75. Each one takes "
                        f"{PART_SHARE:g} of the effort for each step count, and up to a quarter "
                        "for the teacher's images. Empty: none.",
                    },
                ),
            },
            "hidden": {"graph": "PROMPT", "node": "UNIQUE_ID"},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, nfes: str | None, strengths: str | None = None) -> bool | str:
        checks = ((inputs.parse_step_counts, nfes), (inputs.parse_strengths, strengths))
        found = (inputs.validate(parse, text) for parse, text in checks)
        return next((fault for fault in found if fault is not True), True)

    def train(
        self,
        model: MODEL,
        positive: CONDITIONING,
        negative: CONDITIONING,
        latent_image: LATENT,
        cfg: float,
        nfes: str,
        effort: str,
        teacher_sampler: str,
        teacher_scheduler: str,
        teacher_steps: int,
        seed: int,
        vae: VAE | None = None,
        clip: CLIP | None = None,
        prompts: str = "",
        teacher: SAMPLER | None = None,
        teacher_sigmas: torch.Tensor | None = None,
        strengths: str = "",
        graph: Graph | None = None,
        node: str | None = None,
    ) -> dict[str, Any]:
        run = TrainingRun(
            model=model,
            positives=[positive, *encode_prompts(clip, prompts)],
            negative=negative,
            latent=latent_image,
            cfg=cfg,
            nfes=inputs.parse_step_counts(nfes),
            strengths=inputs.parse_strengths(strengths),
            effort=effort,
            teacher=TeacherChoice(
                teacher or teacher_sampler,
                teacher_scheduler if teacher_sigmas is None else teacher_sigmas,
                teacher_steps,
            ),
            seed=seed,
            vae=vae,
            node=node,
            graph=graph,
        )
        solver, preview, report = run.run()
        return {"ui": {"text": [report]}, "result": (solver, preview, report)}
