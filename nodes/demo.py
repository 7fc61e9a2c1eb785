"""The bundled emoji model as MODEL, CONDITIONING, LATENT and VAE: a first workflow on any CPU."""

from functools import lru_cache

import comfy.conds
import comfy.model_base
import comfy.model_management
import comfy.model_patcher
import comfy.sd
import comfy.supported_models_base
import torch
from comfy.latent_formats import ChromaRadiance

from ..s4s_core.demo import DemoModel as CoreModel
from ..s4s_core.demo import load_network
from ..s4s_core.demo.network import SIGMA_RANGE
from ..s4s_core.spaces import alpha
from . import inputs

TYPES = {
    "EDM": comfy.model_base.ModelType.EDM,
    "EPS": comfy.model_base.ModelType.EPS,
    "flow": comfy.model_base.ModelType.FLOW,
}
SETTINGS = {
    "EDM": {"sigma_min": SIGMA_RANGE[0], "sigma_max": SIGMA_RANGE[1]},
    "EPS": {"beta_schedule": "linear", "linear_start": 0.00085, "linear_end": 0.012},
    "flow": {"shift": 1.0},
}


class EmojiDemo(comfy.supported_models_base.BASE):
    """What the host's BaseModel asks about the demo model."""

    latent_format = ChromaRadiance
    unet_extra_config = {}
    memory_usage_factor = 0.1
    supported_inference_dtypes = [torch.float32]

    def __init__(self, kind, network):
        super().__init__({"disable_unet_model_creation": True})
        self.sampling_settings = SETTINGS[kind] | {"sigma_data": network.sigma_data}


class Denoiser(torch.nn.Module):
    """The emoji network in the prediction type that a kind of model has.

    EDM's is what the network was trained to predict; the others are derived from its x0.
    """

    dtype = torch.float32

    def __init__(self, kind, network, sampling):
        super().__init__()
        self.kind, self.network = kind, network
        self.sampling = (sampling,)  # a tuple, so that it is no submodule

    def forward(self, x, timesteps, context=None, label=None, **_):
        label = label.reshape(-1).long().expand(len(x))
        if self.kind == "EDM":
            return self.network.raw(x, timesteps, label).contiguous()
        sigma = self.sampling[0].sigma(timesteps)
        if self.kind == "EPS":
            x = x * (1 + sigma**2).sqrt().view(-1, 1, 1, 1)
        scale = alpha("flow" if self.kind == "flow" else "ve", sigma)
        x0 = self.network(x, sigma, label, scale)
        return ((x - x0) / sigma.view(-1, 1, 1, 1)).contiguous()


class HostModel(comfy.model_base.BaseModel):
    """The host's model around the denoiser; a conditioning names its class by number."""

    def __init__(self, kind):
        network, _ = load_network()
        super().__init__(EmojiDemo(kind, network), TYPES[kind])
        self.diffusion_model = Denoiser(kind, network, self.model_sampling).eval()

    def extra_conds(self, **kwargs):
        label = torch.tensor([kwargs.get("s4s_label", len(class_names()))])
        return {"label": comfy.conds.CONDRegular(label)}


@lru_cache
def class_names():
    """The categories that the demo model knows."""
    return load_network()[1]


class DemoModel:
    DESCRIPTION = (
        "A small emoji model that comes with S4S: everything a first workflow needs, on any "
        "computer and without a download. Its solver is demo.safetensors in Load Solver."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = ("MODEL", "CONDITIONING", "CONDITIONING", "LATENT", "VAE", "CLIP")
    RETURN_NAMES = ("model", "positive", "negative", "latent", "vae", "clip")
    OUTPUT_TOOLTIPS = (
        "The emoji model.",
        "The category.",
        "No category: what guidance leads away from.",
        "An empty latent of 32 x 32 pixels.",
        "Turns the result into an image.",
        "Reads the name of a category as a prompt, in CLIP Text Encode and in Train Solver.",
    )
    FUNCTION = "build"

    @classmethod
    def INPUT_TYPES(cls):
        category = {"tooltip": "What to draw."}
        kind = {
            "default": "EDM",
            "tooltip": "How the model counts noise: EDM as it was trained (demo.safetensors fits "
            "this one), EPS like Stable Diffusion, flow like SD3 and Flux.",
        }
        batch = {"default": 1, "min": 1, "max": 256, "tooltip": "Number of images."}
        return {
            "required": {
                "category": (list(class_names()), category),
                "kind": (list(TYPES), kind),
                "batch_size": ("INT", batch),
            }
        }

    def build(self, category, kind, batch_size):
        host = HostModel(kind)
        load = comfy.model_management.get_torch_device()
        offload = comfy.model_management.unet_offload_device()
        model = comfy.model_patcher.ModelPatcher(host.to(offload), load, offload)
        words = Categories(class_names())
        device = comfy.model_management.intermediate_device()
        latent = {"samples": torch.zeros(batch_size, *CoreModel.shape, device=device)}
        vae = comfy.sd.VAE(sd={"pixel_space_vae": torch.tensor(1.0)})
        return model, words.encode(category), words.encode(""), latent, vae, words


class Categories:
    """What the demo model has for a CLIP: a text that names a category becomes its number."""

    def __init__(self, classes):
        self.classes = classes

    def tokenize(self, text, **_):
        """The class of a text: the first category that it names, or none of them."""
        text = text.strip().lower()
        exact = [name for name in self.classes if name.lower() == text]
        named = exact or [name for name in self.classes if name.lower() in text]
        return self.classes.index(named[0]) if named else len(self.classes)

    def encode_from_tokens_scheduled(self, tokens, **_):
        """The conditioning of a class."""
        return [[torch.zeros(1, 1, 1), {"s4s_label": tokens}]]

    def encode(self, text):
        return self.encode_from_tokens_scheduled(self.tokenize(text))
