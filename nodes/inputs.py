"""Inputs that several nodes share, each with its tooltip."""

CATEGORY = "S4S"
SOLVER = "S4S_SOLVER"
LARGEST_SEED = 0xFFFFFFFFFFFFFFFF


def solver(tooltip="The learned solver: from Load Solver or Train Solver."):
    return SOLVER, {"tooltip": tooltip}


def model(tooltip="The diffusion model, with any LoRA, ControlNet or patch already on it."):
    return "MODEL", {"tooltip": tooltip}


def positive():
    return "CONDITIONING", {"tooltip": "What you want to see in the image."}


def negative():
    return "CONDITIONING", {"tooltip": "What you want to keep out of the image."}


def latent(tooltip="The latent image to start from."):
    return "LATENT", {"tooltip": tooltip}


def seed(tooltip="The random seed of the noise.", changes=True):
    """A seed; where it `changes`, the page draws another one after every run."""
    options = {"default": 0, "min": 0, "max": LARGEST_SEED, "control_after_generate": changes}
    return "INT", options | {"tooltip": tooltip}


def cfg(default=7.0):
    return "FLOAT", {
        "default": default,
        "min": 0.0,
        "max": 100.0,
        "step": 0.1,
        "round": 0.01,
        "tooltip": "Guidance scale. A solver works best at the scale that it was trained for.",
    }


def denoise():
    return "FLOAT", {
        "default": 1.0,
        "min": 0.0,
        "max": 1.0,
        "step": 0.01,
        "tooltip": "How much of the image is made anew: 1 for text to image, less for img2img.",
    }


def vae(tooltip):
    return "VAE", {"tooltip": tooltip}


def teacher_sampler(names):
    return ["auto", *names], {
        "default": "auto",
        "tooltip": "The sampler whose images the solver learns to reach. auto: UniPC of order 3.",
    }


def teacher_scheduler(names):
    return ["auto", *names], {
        "default": "auto",
        "tooltip": "The teacher's noise schedule. auto: the one that suits the model.",
    }


def teacher_steps():
    return "INT", {
        "default": 20,
        "min": 2,
        "max": 200,
        "tooltip": "Steps of the teacher: so many that more would not change its images.",
    }
