"""A tiny SD 1.x checkpoint of one file, in the names of the original code, from a tiny pipeline."""

import re

from safetensors.torch import save_file

RES = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
UNET = (  # of tiny_pipelines.unet: two levels, one layer each, attention in the lower one
    (r"conv_in", "input_blocks.0.0"),
    (r"time_embedding.linear_1", "time_embed.0"),
    (r"time_embedding.linear_2", "time_embed.2"),
    (r"down_blocks.0.resnets.0", "input_blocks.1.0"),
    (r"down_blocks.0.downsamplers.0.conv", "input_blocks.2.0.op"),
    (r"down_blocks.1.resnets.0", "input_blocks.3.0"),
    (r"down_blocks.1.attentions.0", "input_blocks.3.1"),
    (r"mid_block.resnets.0", "middle_block.0"),
    (r"mid_block.attentions.0", "middle_block.1"),
    (r"mid_block.resnets.1", "middle_block.2"),
    (r"up_blocks.0.resnets.0", "output_blocks.0.0"),
    (r"up_blocks.0.attentions.0", "output_blocks.0.1"),
    (r"up_blocks.0.resnets.1", "output_blocks.1.0"),
    (r"up_blocks.0.attentions.1", "output_blocks.1.1"),
    (r"up_blocks.0.upsamplers.0.conv", "output_blocks.1.2.conv"),
    (r"up_blocks.1.resnets.0", "output_blocks.2.0"),
    (r"up_blocks.1.resnets.1", "output_blocks.3.0"),
    (r"conv_norm_out", "out.0"),
    (r"conv_out", "out.2"),
)
VAE = (
    (r"down_blocks\.(\d)\.resnets\.(\d)", r"down.\1.block.\2"),
    (r"down_blocks\.(\d)\.downsamplers\.0", r"down.\1.downsample"),
    (r"up_blocks\.0\.resnets\.(\d)", r"up.1.block.\1"),
    (r"up_blocks\.1\.resnets\.(\d)", r"up.0.block.\1"),
    (r"up_blocks\.0\.upsamplers\.0", r"up.1.upsample"),
    (r"mid_block\.resnets\.0", "mid.block_1"),
    (r"mid_block\.resnets\.1", "mid.block_2"),
    (r"mid_block\.attentions\.0", "mid.attn_1"),
    (r"conv_norm_out", "norm_out"),
    (r"conv_shortcut", "nin_shortcut"),
    (r"group_norm", "norm"),
    (r"to_out\.0", "proj_out"),
    (r"to_(q|k|v)\.", r"\1."),
)


def _unet_name(name):
    for old, new in UNET:
        if name.startswith(old + "."):
            rest = name[len(old) + 1 :]
            if "resnets" in old:
                part, _, kind = rest.rpartition(".")
                rest = f"{RES[part]}.{kind}"
            return f"model.diffusion_model.{new}.{rest}"
    raise KeyError(name)


def save_checkpoint(pipe, path):
    """Write a tiny SD 1.x pipeline as one checkpoint."""
    tensors = {_unet_name(name): t for name, t in pipe.unet.state_dict().items()}
    for name, tensor in pipe.vae.state_dict().items():
        for old, new in VAE:
            name = re.sub(old, new, name)
        linear = ".attn_1." in name and tensor.ndim == 2  # a 1x1 convolution there
        tensors[f"first_stage_model.{name}"] = tensor[..., None, None] if linear else tensor
    for name, tensor in pipe.text_encoder.state_dict().items():
        name = name.removeprefix("text_model.")
        tensors[f"cond_stage_model.transformer.text_model.{name}"] = tensor
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, path)
