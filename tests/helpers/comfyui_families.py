"""Load small random checkpoints of three families in a real ComfyUI, train and sample.

    python comfyui_families.py COMFYUI PACK BASE
prints one JSON line per family.
"""

import json
import sys

from comfyui_bench import Bench, start
from comfyui_unet import sd15_unet


def random_weights(module):
    import torch

    generator = torch.Generator().manual_seed(0)
    return {
        name: 0.05 * torch.randn(value.shape, generator=generator)
        for name, value in module.state_dict().items()
        if value.is_floating_point()
    }


def sd15():
    """Return MODEL, conditioning and latent shape of one level of Stable Diffusion 1.5's UNet."""
    import comfy.sd
    import torch

    model = comfy.sd.load_diffusion_model_state_dict(random_weights(sd15_unet()))
    return model, [[torch.randn(1, 77, 768), {}]], (4, 4, 4)


def edm():
    """The same with the stock node that makes it an EDM model."""
    from comfy_extras.nodes_model_advanced import ModelSamplingContinuousEDM

    model, conditioning, shape = sd15()
    (model,) = ModelSamplingContinuousEDM().patch(model, "edm", 80.0, 0.002)
    return model, conditioning, shape


def sd3():
    """One block of Stable Diffusion 3's transformer."""
    import comfy.ops
    import comfy.sd
    import torch
    from comfy.ldm.modules.diffusionmodules.mmdit import MMDiT

    context = {"target": "torch.nn.Linear", "params": {"in_features": 64, "out_features": 64}}
    sizes = {"depth": 1, "patch_size": 2, "in_channels": 16, "adm_in_channels": 2048}
    sizes |= {"num_patches": 64, "pos_embed_max_size": 8, "pos_embed_scaling_factor": None}
    operations = {"context_embedder_config": context, "operations": comfy.ops.disable_weight_init}
    network = MMDiT(input_size=None, **sizes, **operations)
    model = comfy.sd.load_diffusion_model_state_dict(random_weights(network))
    pooled = {"pooled_output": torch.randn(1, 2048)}
    return model, [[torch.randn(1, 20, 64), pooled]], (16, 4, 4)


def train_and_sample(bench, family):
    """Train a little on a family, sample with the result, and return what came out."""
    import torch

    model, conditioning, shape = family()
    latent = {"samples": torch.zeros(1, *shape)}
    bench.part("nodes.training").EFFORTS["quick"] = 600
    calls, options = "3", ("quick", "euler", "auto", 6, 0)
    fit = bench.part("s4s_core.training.fit")
    bench.part("nodes.training").fit = lambda *args, **more: fit.fit(
        *args, **more, samples=6, validation=4, held_out=4, init="ipndm:2:uniform"
    )
    trained = bench.node["S4STrainSolver"].train(
        model, conditioning, conditioning, latent, 3.0, calls, *options
    )
    pack = trained["result"][0]
    (applied,) = bench.node["S4SApplySolver"].apply(model, pack)
    out = bench.ksample(applied, conditioning, conditioning, latent, steps=3, cfg=3.0)
    scores = pack.metadata["scores"]["3"]
    return {
        "space": pack.space,
        "model": pack.metadata["model"]["name"],
        "finite": bool(torch.isfinite(out).all()),
        "shape": list(out.shape),
        "rmse": scores["rmse"],
        "initial": scores["initial"],
    }


def main(host, pack, base):
    import torch

    bench = Bench(start(host, pack, base), base)
    for family in (sd15, edm, sd3):
        with torch.inference_mode():
            found = train_and_sample(bench, family)
        print("RESULT " + json.dumps({"family": family.__name__} | found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
