"""The bundled emoji model as MODEL, CONDITIONING, LATENT and VAE: a first workflow on any CPU."""

from functools import lru_cache
from typing import Any

import comfy.conds
import comfy.model_base
import comfy.model_management
import comfy.model_patcher
import comfy.sd
import comfy.supported_models_base
import torch
from comfy.latent_formats import ChromaRadiance

from ..s4s_core.app.comfyui import CONDITIONING, LATENT, MODEL, VAE, ModelSampling
from ..s4s_core.demo import DemoModel as CoreModel
from ..s4s_core.demo import load_network
from ..s4s_core.demo.network import SIGMA_RANGE, EmojiNet
from ..s4s_core.spaces import alpha
from . import inputs
from .inputs import InputTypes

TYPES = {
    "EDM": comfy.model_base.ModelType.EDM,
    "EPS": comfy.model_base.ModelType.EPS,
    "flow": comfy.model_base.ModelType.FLOW,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "EDM": {"sigma_min": SIGMA_RANGE[0], "sigma_max": SIGMA_RANGE[1]},
    "EPS": {"beta_schedule": "linear", "linear_start": 0.00085, "linear_end": 0.012},
    "flow": {"shift": 1.0},
}


class EmojiDemo(comfy.supported_models_base.BASE):
    """The demo model's configuration, as ComfyUI's BaseModel reads it."""

    latent_format = ChromaRadiance
    unet_extra_config: dict[str, Any] = {}
    memory_usage_factor = 0.1
    supported_inference_dtypes = [torch.float32]

    def __init__(self, kind: str, network: EmojiNet) -> None:
        super().__init__({"disable_unet_model_creation": True})
        self.sampling_settings = SETTINGS[kind] | {"sigma_data": network.sigma_data}


class Predictor(torch.nn.Module):
    """The emoji network with the prediction type of a kind of model.

    EDM is what the network was trained to predict; the others are derived from its x0.
    """

    dtype = torch.float32

    def __init__(self, kind: str, network: EmojiNet, sampling: ModelSampling) -> None:
        super().__init__()
        self.kind, self.network = kind, network
        self.sampling = (sampling,)  # in a tuple, so that it does not become a submodule

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor | None = None,
        *,
        label: torch.Tensor,
        **_: Any,
    ) -> torch.Tensor:
        label = label.reshape(-1).long().expand(len(x))
        if self.kind == "EDM":
            return self.network.raw(x, timesteps, label).contiguous()
        sigma = self.sampling[0].sigma(timesteps)
        if self.kind == "EPS":
            x = x * (1 + sigma**2).sqrt().view(-1, 1, 1, 1)
        scale = alpha("flow" if self.kind == "flow" else "ve", sigma)
        x0 = self.network(x, sigma, label, scale)
        return ((x - x0) / sigma.view(-1, 1, 1, 1)).contiguous()


class EmojiModel(comfy.model_base.BaseModel):
    """ComfyUI's model around the network; a conditioning holds the number of a category."""

    def __init__(self, kind: str) -> None:
        network, _ = load_network()
        super().__init__(EmojiDemo(kind, network), TYPES[kind])
        self.diffusion_model = Predictor(kind, network, self.model_sampling).eval()

    def extra_conds(self, **kwargs: Any) -> dict[str, Any]:
        label = torch.tensor([kwargs.get("s4s_label", len(class_names()))])
        return {"label": comfy.conds.CONDRegular(label)}


@lru_cache
def class_names() -> list[str]:
    """Return the categories that the demo model knows."""
    return list(load_network()[1])


class DemoModel:
    DESCRIPTION = (
        "A small emoji model that comes with S4S: everything for a first workflow, on any computer "
        "and without a download. Its solver is demo.safetensors in Load Solver."
    )
    CATEGORY = inputs.CATEGORY
    RETURN_TYPES = ("MODEL", "CONDITIONING", "CONDITIONING", "LATENT", "VAE", "CLIP")
    RETURN_NAMES = ("model", "positive", "negative", "latent", "vae", "clip")
    OUTPUT_TOOLTIPS = (
        "The emoji model.",
        "The category.",
        "No category: guidance steers away from it.",
        "An empty latent of 32 x 32 pixels.",
        "Turns the result into an image.",
        "Turns a category's name into a prompt, for CLIP Text Encode and Train Solver.",
    )
    FUNCTION = "build"

    @classmethod
    def INPUT_TYPES(cls) -> InputTypes:
        category = {"tooltip": "What to draw."}
        kind = {
            "default": "EDM",
            "tooltip": "How the model measures noise: EDM as it was trained (the kind that "
            "demo.safetensors is for), EPS like Stable Diffusion, flow like SD3 and Flux.",
        }
        batch = {"default": 1, "min": 1, "max": 256, "tooltip": "Number of images."}
        return {
            "required": {
                "category": (list(class_names()), category),
                "kind": (list(TYPES), kind),
                "batch_size": ("INT", batch),
            }
        }

    def build(
        self, category: str, kind: str, batch_size: int
    ) -> tuple[MODEL, CONDITIONING, CONDITIONING, LATENT, VAE, "Categories"]:
        load = comfy.model_management.get_torch_device()
        offload = comfy.model_management.unet_offload_device()
        model = comfy.model_patcher.ModelPatcher(EmojiModel(kind).to(offload), load, offload)
        clip = Categories(class_names())
        device = comfy.model_management.intermediate_device()
        latent = {"samples": torch.zeros(batch_size, *CoreModel.shape, device=device)}
        vae = comfy.sd.VAE(sd={"pixel_space_vae": torch.tensor(1.0)})
        return model, clip.encode(category), clip.encode(""), latent, vae, clip


class Categories:
    """The demo model's CLIP: a text that names a category becomes its number."""

    def __init__(self, classes: list[str]) -> None:
        self.classes = classes

    def tokenize(self, text: str, **_: Any) -> int:
        """Return the first category that a text names, or the number of categories if none."""
        text = text.strip().lower()
        exact = [name for name in self.classes if name.lower() == text]
        named = exact or [name for name in self.classes if name.lower() in text]
        return self.classes.index(named[0]) if named else len(self.classes)

    def encode_from_tokens_scheduled(self, tokens: int, **_: Any) -> CONDITIONING:
        """Return the conditioning of a category."""
        return [[torch.zeros(1, 1, 1), {"s4s_label": tokens}]]

    def encode(self, text: str) -> CONDITIONING:
        return self.encode_from_tokens_scheduled(self.tokenize(text))
