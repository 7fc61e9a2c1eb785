"""The networks of diffusers' pipelines, one class each: how prompts and the network are called.

part             the network's name in the pipeline
take(cfg) -> cfg the guidance scale that is left for classifier-free guidance
encode(pipe, prompts, negative, device) -> (texts, negatives)
                 dicts of tensors, one row per prompt and one negative row; `negative` is as
                 long as the prompts, or None
predict(x, sigma, time, texts) -> output
                 of one batch, without guidance
"""

import torch

from s4s_core.errors import ModelError


class UNet:
    """Stable Diffusion 1 and 2."""

    part, cfg, patch = "unet", 7.5, 1

    def __init__(self, pipe, height, width):
        self.network = getattr(pipe, self.part)
        self.config = self.network.config
        self.size = height, width
        if getattr(self.config, "time_cond_proj_dim", None):
            raise ModelError("This pipeline is distilled to a few steps of its own solver already.")

    @staticmethod
    def default_size(pipe):
        """(height, width) in pixels where the user chose none."""
        size = pipe.unet.config.sample_size
        sides = (size, size) if isinstance(size, int) else size
        return tuple(side * pipe.vae_scale_factor for side in sides)

    @property
    def channels(self):
        """Channels of the latent; ModelError for a network that wants a picture beside it."""
        if self.config.in_channels != self.config.out_channels:
            raise ModelError("This is an inpainting or editing model: take its text-to-image kin.")
        return self.config.in_channels

    def take(self, cfg):
        return cfg or self.cfg

    def encode(self, pipe, prompts, negative, device):
        texts, negatives = pipe.encode_prompt(prompts, device, 1, True, negative)
        return {"text": texts}, {"text": negatives[:1]}

    def predict(self, x, sigma, time, texts):
        return self.network(x, time, encoder_hidden_states=texts["text"], return_dict=False)[0]


class UNetXL(UNet):
    """Stable Diffusion XL: a pooled text and the picture's size beside the text."""

    cfg = 5.0

    def encode(self, pipe, prompts, negative, device):
        return _four(
            pipe.encode_prompt(
                prompts,
                device=device,
                do_classifier_free_guidance=True,
                negative_prompt=negative,
            )
        )

    def predict(self, x, sigma, time, texts):
        height, width = self.size
        ids = texts["pooled"].new_tensor([height, width, 0, 0, height, width])
        added = {"text_embeds": texts["pooled"], "time_ids": ids.expand(len(x), -1)}
        return self.network(
            x,
            time,
            encoder_hidden_states=texts["text"],
            added_cond_kwargs=added,
            return_dict=False,
        )[0]


class SD3(UNet):
    """Stable Diffusion 3 and 3.5."""

    part, cfg, patch = "transformer", 7.0, 2

    @staticmethod
    def default_size(pipe):
        return (pipe.default_sample_size * pipe.vae_scale_factor,) * 2

    def encode(self, pipe, prompts, negative, device):
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

    def predict(self, x, sigma, time, texts):
        return self.network(
            hidden_states=x,
            timestep=time,
            encoder_hidden_states=texts["text"],
            pooled_projections=texts["pooled"],
            return_dict=False,
        )[0]


class Flux(SD3):
    """Flux: patches as tokens, and a guidance scale that the network itself is told."""

    cfg = 3.5

    def __init__(self, pipe, height, width):
        super().__init__(pipe, height, width)
        self.pack, self.ids = pipe._pack_latents, pipe._prepare_latent_image_ids
        self.guided, self.guidance, self._time = bool(self.config.guidance_embeds), 0.0, None
        self.network.time_text_embed.register_forward_pre_hook(self._exact_time)

    @property
    def channels(self):
        return self.config.in_channels // 4

    def take(self, cfg):
        """Networks that know no guidance scale (schnell) take none by default."""
        if not self.guided:
            return cfg or 1.0
        self.guidance = cfg or self.cfg
        return 1.0

    def encode(self, pipe, prompts, negative, device):
        text, pooled, _ = pipe.encode_prompt(prompts, device=device)
        no_text, no_pooled, _ = pipe.encode_prompt((negative or [""])[:1], device=device)
        return {"text": text, "pooled": pooled}, {"text": no_text, "pooled": no_pooled}

    def predict(self, x, sigma, time, texts):
        count, channels, height, width = x.shape
        rows, columns = height // 2, width // 2
        guidance = x.new_full((count,), self.guidance, dtype=torch.float32)
        self._time = time
        out = self.network(
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

    def _exact_time(self, module, arguments):
        """The time in float32: the network rounds it to its own precision, in steps of 4 / 1000."""
        return self._time, *arguments[1:]


def _four(encoded):
    text, no_text, pooled, no_pooled = encoded
    return {"text": text, "pooled": pooled}, {"text": no_text[:1], "pooled": no_pooled[:1]}


NETWORKS = {
    "StableDiffusionPipeline": UNet,
    "StableDiffusionXLPipeline": UNetXL,
    "StableDiffusion3Pipeline": SD3,
    "FluxPipeline": Flux,
}
"""Pipelines that can be trained for, by the name in their model_index.json."""
