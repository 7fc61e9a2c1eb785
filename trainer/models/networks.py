"""The networks of diffusers pipelines, one class each: how to encode prompts and call them."""

from typing import Any

import torch

from s4s_core.errors import ModelError

Texts = dict[str, torch.Tensor]
"""Embeddings by name, one row per prompt."""


class UNet:
    """Stable Diffusion 1 and 2; the other networks override what differs."""

    part, cfg, patch = "unet", 7.5, 1
    """The network's name in the pipeline, the default guidance scale, pixels per token side."""

    guidance = 0.0
    """The guidance scale that the network itself takes; 0 if it takes none."""

    def __init__(self, pipe: Any, height: int, width: int) -> None:
        self.network = getattr(pipe, self.part)
        self.config = self.network.config
        self.size = height, width
        if getattr(self.config, "time_cond_proj_dim", None):
            raise ModelError("This pipeline is already distilled to a few steps.")

    @staticmethod
    def default_size(pipe: Any) -> tuple[int, int]:
        """Return (height, width) in pixels."""
        size, scale = pipe.unet.config.sample_size, pipe.vae_scale_factor
        height, width = (size, size) if isinstance(size, int) else size
        return height * scale, width * scale

    @property
    def channels(self) -> int:
        """The latent's channels; raises ModelError for a network that also takes a picture."""
        if self.config.in_channels != self.config.out_channels:
            raise ModelError(
                "This is an inpainting or editing model. Use its text-to-image version."
            )
        return int(self.config.in_channels)

    def take(self, cfg: float) -> float:
        """Take the user's guidance scale (0 for the default); return the one for CFG."""
        return cfg or self.cfg

    def encode(
        self, pipe: Any, prompts: list[str], negative: list[str] | None, device: torch.device
    ) -> tuple[Texts, Texts]:
        """Return the embeddings of the prompts, and one row for the negative prompt.

        negative: None, or as many texts as there are prompts.
        """
        texts, negatives = pipe.encode_prompt(prompts, device, 1, True, negative)
        return {"text": texts}, {"text": negatives[:1]}

    def predict(
        self, x: torch.Tensor, sigma: torch.Tensor, time: torch.Tensor, texts: Texts
    ) -> torch.Tensor:
        """Call the network on one batch, without classifier-free guidance."""
        text = texts["text"]
        output: torch.Tensor = self.network(x, time, encoder_hidden_states=text, return_dict=False)[
            0
        ]
        return output


class UNetXL(UNet):
    """Stable Diffusion XL: takes a pooled text and the picture's size as well."""

    cfg = 5.0

    def encode(
        self, pipe: Any, prompts: list[str], negative: list[str] | None, device: torch.device
    ) -> tuple[Texts, Texts]:
        return _four(
            pipe.encode_prompt(
                prompts,
                device=device,
                do_classifier_free_guidance=True,
                negative_prompt=negative,
            )
        )

    def predict(
        self, x: torch.Tensor, sigma: torch.Tensor, time: torch.Tensor, texts: Texts
    ) -> torch.Tensor:
        height, width = self.size
        ids = texts["pooled"].new_tensor([height, width, 0, 0, height, width])
        added = {"text_embeds": texts["pooled"], "time_ids": ids.expand(len(x), -1)}
        output: torch.Tensor = self.network(
            x,
            time,
            encoder_hidden_states=texts["text"],
            added_cond_kwargs=added,
            return_dict=False,
        )[0]
        return output


class SD3(UNet):
    """Stable Diffusion 3 and 3.5."""

    part, cfg, patch = "transformer", 7.0, 2

    @staticmethod
    def default_size(pipe: Any) -> tuple[int, int]:
        return (pipe.default_sample_size * pipe.vae_scale_factor,) * 2

    def encode(
        self, pipe: Any, prompts: list[str], negative: list[str] | None, device: torch.device
    ) -> tuple[Texts, Texts]:
        return _four(
            pipe.encode_prompt(
                prompts,
                None,
                None,
                device=device,
                do_classifier_free_guidance=True,
                negative_prompt=negative,
            )
        )

    def predict(
        self, x: torch.Tensor, sigma: torch.Tensor, time: torch.Tensor, texts: Texts
    ) -> torch.Tensor:
        output: torch.Tensor = self.network(
            hidden_states=x,
            timestep=time,
            encoder_hidden_states=texts["text"],
            pooled_projections=texts["pooled"],
            return_dict=False,
        )[0]
        return output


class Flux(SD3):
    """Flux: patches are tokens, and the network may take the guidance scale as an input."""

    cfg = 3.5

    def __init__(self, pipe: Any, height: int, width: int) -> None:
        super().__init__(pipe, height, width)
        self.pack, self.ids = pipe._pack_latents, pipe._prepare_latent_image_ids
        self.guided = bool(self.config.guidance_embeds)
        self._time: torch.Tensor | None = None
        self.network.time_text_embed.register_forward_pre_hook(self._exact_time)

    @property
    def channels(self) -> int:
        return int(self.config.in_channels) // 4

    def take(self, cfg: float) -> float:
        """A network without a guidance input (schnell) uses no guidance by default."""
        if not self.guided:
            return cfg or 1.0
        self.guidance = cfg or self.cfg
        return 1.0

    def encode(
        self, pipe: Any, prompts: list[str], negative: list[str] | None, device: torch.device
    ) -> tuple[Texts, Texts]:
        text, pooled, _ = pipe.encode_prompt(prompts, device=device)
        no_text, no_pooled, _ = pipe.encode_prompt((negative or [""])[:1], device=device)
        return {"text": text, "pooled": pooled}, {"text": no_text, "pooled": no_pooled}

    def predict(
        self, x: torch.Tensor, sigma: torch.Tensor, time: torch.Tensor, texts: Texts
    ) -> torch.Tensor:
        count, channels, height, width = x.shape
        rows, columns = height // 2, width // 2
        guidance = x.new_full((count,), self.guidance, dtype=torch.float32)
        self._time = time
        out: torch.Tensor = self.network(
            hidden_states=self.pack(x, count, channels, height, width),
            timestep=sigma,
            guidance=guidance if self.guided else None,
            encoder_hidden_states=texts["text"],
            pooled_projections=texts["pooled"],
            txt_ids=x.new_zeros(texts["text"].shape[1], 3),
            img_ids=self.ids(count, rows, columns, x.device, x.dtype),
            return_dict=False,
        )[0]
        out = out.view(count, rows, columns, channels, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return out.reshape(x.shape)

    def _exact_time(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Pass the time in float32: the network would round it to its own precision."""
        return self._time, *arguments[1:]


def _four(encoded: tuple[torch.Tensor, ...]) -> tuple[Texts, Texts]:
    text, no_text, pooled, no_pooled = encoded
    return {"text": text, "pooled": pooled}, {"text": no_text[:1], "pooled": no_pooled[:1]}


NETWORKS: dict[str, type[UNet]] = {
    "StableDiffusionPipeline": UNet,
    "StableDiffusionXLPipeline": UNetXL,
    "StableDiffusion3Pipeline": SD3,
    "FluxPipeline": Flux,
}
"""Supported pipelines, by the class name in model_index.json."""
