"""A small network that ComfyUI takes for Stable Diffusion 1.5's."""


def sd15_unet():
    """One level of the UNet, with random weights; ComfyUI must be importable."""
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    levels = {"num_res_blocks": [1], "channel_mult": [1], "transformer_depth": [1]}
    levels |= {"transformer_depth_output": [1, 1], "transformer_depth_middle": 1}
    sizes = {"image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 320}
    attention = {"context_dim": 768, "num_heads": 8, "use_spatial_transformer": True}
    return UNetModel(**sizes, **levels, **attention, legacy=False)
