"""Train Solver: learning in the graph, on the model exactly as it is wired."""

import comfy.samplers

from ..s4s_core.names import EFFORTS
from . import inputs, learning, register


class TrainSolver:
    DESCRIPTION = (
        "Learns a solver for this model: its LoRAs, ControlNets, guidance and size included. "
        "Needs no more memory than sampling. Cancel with the stock button; queue it again and it "
        "goes on from there."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = (inputs.SOLVER, "IMAGE", "STRING")
    RETURN_NAMES = ("solver", "preview", "report")
    OUTPUT_TOOLTIPS = (
        "The learned solver, for Save Solver, Apply Solver or KSampler (S4S).",
        "The teacher's images, the best stock solver's and the learned solver's, on new noise.",
        "What was learned, and how far from the teacher it lands, in words.",
    )
    FUNCTION = "train"

    @classmethod
    def INPUT_TYPES(cls):
        samplers = [n for n in comfy.samplers.KSampler.SAMPLERS if n != register.NAME]
        schedulers = [n for n in comfy.samplers.KSampler.SCHEDULERS if n != register.NAME]
        calls = ", ".join(f"{name} {count:,}" for name, count in EFFORTS.items())
        return {
            "required": {
                "model": inputs.model(),
                "positive": inputs.positive(),
                "negative": inputs.negative(),
                "latent_image": inputs.latent("Its size is what the solver is trained for."),
                "cfg": inputs.cfg(),
                "nfes": (
                    "STRING",
                    {
                        "default": "5",
                        "tooltip": "Steps to learn, such as 5 or 4,5,6,8. Each is trained on its "
                        "own, and all go into one solver.",
                    },
                ),
                "effort": (
                    list(EFFORTS),
                    {"default": "quick", "tooltip": f"Model calls for each of the steps: {calls}."},
                ),
                "teacher_sampler": inputs.teacher_sampler(samplers),
                "teacher_scheduler": inputs.teacher_scheduler(schedulers),
                "teacher_steps": inputs.teacher_steps(),
                # a seed that changed by itself would begin anew instead of resuming
                "seed": inputs.seed("The random seed of the noise to learn from.", changes=False),
            },
            "optional": {
                "vae": inputs.vae("Shows the previews as real images."),
                "clip": (
                    "CLIP",
                    {"tooltip": "Encodes the extra prompts."},
                ),
                "prompts": (
                    "STRING",
                    {
                        "default": "",
                        "multiline": True,
                        "tooltip": "Extra prompts to learn from, one a line, encoded with the CLIP "
                        "that is connected. More kinds of images make a more general solver.",
                    },
                ),
                "teacher": (
                    "SAMPLER",
                    {"tooltip": "A teacher of your own, instead of the sampler chosen above."},
                ),
                "teacher_sigmas": (
                    "SIGMAS",
                    {"tooltip": "The teacher's noise levels, instead of the scheduler above."},
                ),
            },
            "hidden": {"graph": "PROMPT", "node": "UNIQUE_ID"},
        }

    @classmethod
    def VALIDATE_INPUTS(cls, nfes):
        """True, or what is wrong; a text that comes by wire (None here) is checked when it runs."""
        return nfes is None or learning.problem_with_nfes(nfes) or True

    def train(
        self,
        model,
        positive,
        negative,
        latent_image,
        cfg,
        nfes,
        effort,
        teacher_sampler,
        teacher_scheduler,
        teacher_steps,
        seed,
        vae=None,
        clip=None,
        prompts="",
        teacher=None,
        teacher_sigmas=None,
        graph=None,
        node=None,
    ):
        lesson = learning.Lesson(
            model=model,
            positives=[positive, *learning.encoded(clip, prompts)],
            negative=negative,
            latent=latent_image,
            cfg=cfg,
            nfes=learning.whole_numbers(nfes),
            effort=effort,
            teacher=learning.TeacherChoice(
                teacher or teacher_sampler,
                teacher_scheduler if teacher_sigmas is None else teacher_sigmas,
                teacher_steps,
            ),
            seed=seed,
            vae=vae,
            node=node,
            graph=graph,
        )
        solver, preview, report = lesson.learn()
        return {"ui": {"text": [report]}, "result": (solver, preview, report)}
