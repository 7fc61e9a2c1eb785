"""Run by Forge's own Python in Forge's folder: writes a small random checkpoint of SD 1.5's kind.

The text encoder and the VAE have their usual shapes, because Forge builds them from its own
configurations; the UNet, whose shape Forge reads off the weights, has two levels of one block.
    python webui_tiny_checkpoint.py OUT
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

sys.path[:0] = [".", "repositories/huggingface_guess", "packages_3rdparty"]
sys.argv, out = ["launch.py", "--always-cpu"], sys.argv[1]  # Forge reads the command line on import

from backend.nn.unet import IntegratedUNet2DConditionModel  # noqa: E402
from backend.nn.vae import IntegratedAutoencoderKL  # noqa: E402
from transformers import CLIPTextConfig, CLIPTextModel  # noqa: E402

LATENT_SCALE = 40
"""Gives latents a spread of about 1.8. Random weights give 0.05, which any noise drowns."""

HOME = Path("backend/huggingface/runwayml/stable-diffusion-v1-5")


def main():
    torch.manual_seed(0)
    unet = IntegratedUNet2DConditionModel(
        in_channels=4,
        model_channels=320,
        out_channels=4,
        num_res_blocks=[1, 1],
        channel_mult=(1, 1),
        num_heads=8,
        use_spatial_transformer=True,
        transformer_depth=[1, 1],
        transformer_depth_output=[1, 1, 1, 1],
        transformer_depth_middle=1,
        context_dim=768,
    )
    vae = IntegratedAutoencoderKL.from_config(IntegratedAutoencoderKL.load_config(HOME / "vae"))
    with torch.no_grad():
        vae.quant_conv.weight[:4] *= LATENT_SCALE
        vae.quant_conv.bias[4:] = -30  # the logarithm of the variance of encoding
    text = CLIPTextModel(CLIPTextConfig.from_pretrained(HOME / "text_encoder"))
    torch.nn.init.normal_(text.text_model.final_layer_norm.bias, 0.1)  # the host divides by a mean
    parts = {
        "model.diffusion_model.": unet,
        "first_stage_model.": vae,
        "cond_stage_model.transformer.": text,
    }
    weights = {
        prefix + name: value.half().contiguous()
        for prefix, part in parts.items()
        for name, value in part.state_dict().items()
        if value.is_floating_point()
    }
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, out)


if __name__ == "__main__":
    main()
