"""Tiny random diffusers pipelines, built on the spot and saved to a folder: nothing is downloaded.

Importing this module skips the tests that do so where diffusers or transformers is missing.
"""

import importlib
import json
import sys

import pytest
import torch

try:  # transformers imports torchaudio where it is installed, even one that does not fit torch
    importlib.import_module("torchaudio")
except (ImportError, OSError, RuntimeError):
    sys.modules["torchaudio"] = None

from trainer.models import ModelChoice  # noqa: E402

diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

KINDS = ("sd1", "sd2v", "sdxl", "sd3", "flux", "schnell")
LENGTH = 16  # tokens of a prompt
SIZE = 16  # pixels
CFG = 4.0
PROMPTS, NEGATIVE = ("a cat", "the red sea"), "dog"
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
LEADING = BETAS | {"timestep_spacing": "leading", "steps_offset": 1}


def clip_tokenizer(folder):
    """A CLIP tokenizer whose vocabulary is single letters, with and without the end of a word."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + [",", "."]
    tokens = [*letters, *(c + "</w>" for c in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({t: n for n, t in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return transformers.CLIPTokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=LENGTH
    )


def t5_tokenizer(folder):
    """A T5 tokenizer over letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    special = ["<pad>", "</s>", "<unk>", "\u2581"]
    vocab = [(token, -1.0) for token in special + letters]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "model_max_length": LENGTH}
    tokens = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts | tokens))
    return transformers.T5TokenizerFast.from_pretrained(folder)


def clip_text(width=32, projected=False):
    sizes = {"hidden_size": width, "projection_dim": width, "max_position_embeddings": LENGTH}
    sizes |= {"intermediate_size": 37, "num_attention_heads": 4, "num_hidden_layers": 3}
    tokens = {"vocab_size": 64, "bos_token_id": 56, "eos_token_id": 57, "pad_token_id": 57}
    config = transformers.CLIPTextConfig(**sizes, **tokens, hidden_act="gelu")
    kind = transformers.CLIPTextModelWithProjection if projected else transformers.CLIPTextModel
    return kind(config)


def t5_text(width=32):
    config = transformers.T5Config(
        vocab_size=64, d_model=width, d_kv=8, d_ff=37, num_layers=2, num_heads=4
    )
    return transformers.T5EncoderModel(config)


def vae(channels=4, **options):
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 2, "block_out_channels": [32, 64]}
    blocks |= {"up_block_types": ["UpDecoderBlock2D"] * 2, "norm_num_groups": 8}
    sizes = {"in_channels": 3, "out_channels": 3, "latent_channels": channels}
    return diffusers.AutoencoderKL(**blocks, **sizes, **options)


def unet(width=32, **options):
    blocks = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
    blocks["down_block_types"] = ("DownBlock2D", "CrossAttnDownBlock2D")
    blocks["up_block_types"] = ("CrossAttnUpBlock2D", "UpBlock2D")
    sizes = {"sample_size": 8, "in_channels": 4, "out_channels": 4}
    sizes |= {"cross_attention_dim": width, "attention_head_dim": 4}
    return diffusers.UNet2DConditionModel(**blocks, **sizes, **options)


def _stable_diffusion(folder, prediction):
    unchecked = {"safety_checker": None, "feature_extractor": None}
    return diffusers.StableDiffusionPipeline(
        vae=vae(),
        text_encoder=clip_text(),
        tokenizer=clip_tokenizer(folder / "clip"),
        unet=unet(),
        scheduler=diffusers.EulerDiscreteScheduler(**LEADING, prediction_type=prediction),
        requires_safety_checker=False,
        **unchecked,
    )


def _sdxl(folder):
    ids = {"addition_embed_type": "text_time", "addition_time_embed_dim": 8}
    spread = {"latents_mean": [0.1, -0.2, 0.3, 0.0], "latents_std": [1.5, 0.5, 1.0, 2.0]}
    return diffusers.StableDiffusionXLPipeline(
        vae=vae(**spread),
        text_encoder=clip_text(),
        text_encoder_2=clip_text(projected=True),
        tokenizer=clip_tokenizer(folder / "clip"),
        tokenizer_2=clip_tokenizer(folder / "clip"),
        unet=unet(64, projection_class_embeddings_input_dim=80, **ids),
        scheduler=diffusers.EulerDiscreteScheduler(**LEADING),
    )


def _sd3(folder):
    sizes = {"sample_size": 8, "patch_size": 2, "in_channels": 4, "out_channels": 4}
    sizes |= {"num_layers": 1, "attention_head_dim": 8, "num_attention_heads": 4}
    sizes |= {"caption_projection_dim": 32, "joint_attention_dim": 64, "pooled_projection_dim": 64}
    return diffusers.StableDiffusion3Pipeline(
        transformer=diffusers.SD3Transformer2DModel(**sizes),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae(shift_factor=0.06, scaling_factor=1.5),
        text_encoder=clip_text(projected=True),
        tokenizer=clip_tokenizer(folder / "clip"),
        text_encoder_2=clip_text(projected=True),
        tokenizer_2=clip_tokenizer(folder / "clip"),
        text_encoder_3=t5_text(64),
        tokenizer_3=t5_tokenizer(folder / "t5"),
    )


def _flux(folder, guided):
    sizes = {"patch_size": 1, "in_channels": 16, "num_layers": 1, "num_single_layers": 1}
    sizes |= {"attention_head_dim": 16, "num_attention_heads": 2, "axes_dims_rope": [4, 4, 8]}
    sizes |= {"joint_attention_dim": 32, "pooled_projection_dim": 32}
    return diffusers.FluxPipeline(
        transformer=diffusers.FluxTransformer2DModel(**sizes, guidance_embeds=guided),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=guided),
        vae=vae(shift_factor=0.06, scaling_factor=1.5),
        text_encoder=clip_text(),
        tokenizer=clip_tokenizer(folder / "clip"),
        text_encoder_2=t5_text(),
        tokenizer_2=t5_tokenizer(folder / "t5"),
    )


def build(kind, folder, seed=0):
    """A tiny pipeline of that kind with random weights, the same for the same seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind in ("sd1", "sd2v"):
            pipe = _stable_diffusion(folder, "epsilon" if kind == "sd1" else "v_prediction")
        elif kind == "sdxl":
            pipe = _sdxl(folder)
        elif kind == "sd3":
            pipe = _sd3(folder)
        else:
            pipe = _flux(folder, guided=kind == "flux")
    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module):
            part.eval()
    pipe.set_progress_bar_config(disable=True)
    return pipe


def save(kind, folder):
    """Save a tiny pipeline to `folder` / kind and return (pipeline, folder)."""
    pipe = build(kind, folder / "tokenizers")
    pipe.save_pretrained(folder / kind)
    return pipe, folder / kind


def choice(folder, **options):
    """The choice of a saved pipeline, whose results `run` gives."""
    options = {"prompts": PROMPTS, "negative": NEGATIVE, "cfg": CFG, "device": "cpu"} | options
    return ModelChoice("diffusers", str(folder), width=SIZE, height=SIZE, **options)


def run(kind, pipe, noise, steps, output="latent", **options):
    """The pipeline's own result from unit noise [2, ...] for both prompts, under guidance."""
    options |= {"guidance_scale": CFG}
    if kind not in ("flux", "schnell"):
        options["negative_prompt"] = [NEGATIVE] * 2
    if kind == "schnell":
        options |= {"true_cfg_scale": CFG, "negative_prompt": [NEGATIVE] * 2}
    if kind in ("flux", "schnell"):
        noise = pipe._pack_latents(noise, *noise.shape)
    options |= {"num_inference_steps": steps, "width": SIZE, "height": SIZE}
    result = pipe(list(PROMPTS), latents=noise, output_type=output, **options).images
    if output == "latent" and kind in ("flux", "schnell"):
        return pipe._unpack_latents(result, SIZE, SIZE, pipe.vae_scale_factor)
    return result


IMAGE_TO_IMAGE = {
    "sd1": "StableDiffusionImg2ImgPipeline",
    "sdxl": "StableDiffusionXLImg2ImgPipeline",
    "sd3": "StableDiffusion3Img2ImgPipeline",
    "flux": "FluxImg2ImgPipeline",
    "schnell": "FluxImg2ImgPipeline",
}
INPAINTING = {"sd1": "StableDiffusionInpaintPipeline", "flux": "FluxInpaintPipeline"}


def sibling(pipe, name):
    """The pipeline of that type with the components of another."""
    other = getattr(diffusers, name)(**pipe.components)
    other.set_progress_bar_config(disable=True)
    return other


def change(kind, pipe, strength, steps, **options):
    """The pipeline's own result from a picture, or options["image"], for both prompts."""
    picture = torch.rand(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    if kind != "flux":
        options["negative_prompt"] = [NEGATIVE] * 2
    if kind == "schnell":
        options["true_cfg_scale"] = CFG
    if kind in ("sd3", "flux", "schnell"):
        options |= {"width": SIZE, "height": SIZE}
    options = {"image": picture, "output_type": "latent", "guidance_scale": CFG} | options
    options |= {"strength": strength, "num_inference_steps": steps}
    result = pipe(list(PROMPTS), generator=torch.Generator().manual_seed(2), **options).images
    if kind in ("flux", "schnell"):
        return pipe._unpack_latents(result, SIZE, SIZE, pipe.vae_scale_factor)
    return result
