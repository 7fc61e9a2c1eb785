"""Open a small random SD 1.5 checkpoint through the trainer and print what it does as JSON.

COMFYUI_PYTHON comfyui_checkpoint.py COMFYUI FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), sys.argv[1]]

import comfy.cli_args  # noqa: E402

comfy.cli_args.args.cpu = True

import comfy.clip_model  # noqa: E402
import comfy.ops  # noqa: E402
import comfy.sample  # noqa: E402
import comfy.taesd.taesd  # noqa: E402
from comfyui_unet import sd15_unet  # noqa: E402

from s4s_core import classical_table, fit, sample, schedule  # noqa: E402
from s4s_core.errors import ModelError  # noqa: E402
from s4s_core.teacher import default_teacher, draw_noise  # noqa: E402
from trainer.models import ModelChoice, open_model  # noqa: E402


def prefixed(prefix, module, generator):
    """Return small random weights of a module under a checkpoint's names."""
    return {
        prefix + name: (0.05 * torch.randn(value.shape, generator=generator)).half()
        for name, value in module.state_dict().items()
        if value.is_floating_point()
    }


def checkpoint(path):
    """Save the smallest checkpoint that ComfyUI detects as SD 1.5."""
    config = json.loads((Path(sys.argv[1]) / "comfy" / "sd1_clip_config.json").read_text())
    clip = comfy.clip_model.CLIPTextModel(config, torch.float16, "cpu", comfy.ops.manual_cast)
    generator = torch.Generator().manual_seed(0)
    tensors = prefixed("model.diffusion_model.", sd15_unet(), generator)
    tensors |= prefixed("cond_stage_model.transformer.", clip, generator)
    tensors |= prefixed("first_stage_model.", comfy.taesd.taesd.TAESD(), generator)
    save_file(tensors, path)


def refused(*fields, **options):
    try:
        open_model(ModelChoice("comfyui", *fields, **options))
    except ModelError as error:
        return str(error)
    return None


def stock_euler(model, noise, steps):
    """Return KSampler's result with euler and the simple schedule, and its sigmas."""
    sampler = comfy.samplers.KSampler(model.model, steps, "cpu", "euler", "simple", 1.0)
    positive = comfy.samplers.CFGGuider(model.model)
    positive.set_conds(model.raw[1], model.raw[0])
    positive.set_cfg(model.cfg)
    empty = torch.zeros_like(noise)
    euler = comfy.samplers.ksampler("euler")
    return positive.sample(noise, empty, euler, sampler.sigmas, disable_pbar=True), sampler.sigmas


def main():
    folder = Path(sys.argv[2])
    path = folder / "tiny.safetensors"
    checkpoint(path)
    options = {"host": sys.argv[1], "width": 64, "height": 64, "device": "cpu"}
    prompts = ("a red fox", "a bowl of ramen", "the sea " * 60)
    choice = ModelChoice("comfyui", str(path), prompts=prompts, cfg=3.0, **options)

    from trainer.models import comfyui

    kept, encoded = [], comfyui._encoded
    comfyui._encoded = lambda *arguments: kept.append(encoded(*arguments)) or kept[-1]
    model = open_model(choice)
    model.raw = kept
    noise = torch.randn(1, *model.shape, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        stock, sigmas = stock_euler(model, noise, 4)
        table = classical_table("euler", sigmas.double(), space="ve")
        start = noise * (1 + sigmas[0] ** 2).sqrt()
        ours = sample(model.denoise, start, table, torch.tensor([0]))
        ours_out = model.model.model.process_latent_out(ours)
        x, cond = draw_noise(model, 3, 0)
        cond = torch.tensor([0, 2, 1])
        level = torch.tensor([9.0, 1.0, 0.3])
        together = model.denoise(x, level, cond)
        alone = [model.denoise(x[n : n + 1], level[n : n + 1], cond[n : n + 1]) for n in range(3)]
        guided = model.denoise(x, level, cond, torch.tensor([1.0, 0.0, 0.5]))
        scaled = []
        for n, cfg in enumerate((3.0, 1.0, 2.0)):
            model.cfg = cfg
            scaled.append(model.denoise(x[n : n + 1], level[n : n + 1], cond[n : n + 1]))
        model.cfg = 3.0
        times = model.model.get_model_object("model_sampling").timestep(torch.tensor([1.0, 1.0005]))
        pictures = model.decode(ours)
    small = {"samples": 2, "validation": 2, "held_out": 2, "batch": 8, "starts": 1}
    teacher = default_teacher(model, 4)
    result = fit(model, 2, budget=200, init="euler:1:uniform", teacher=teacher, **small)
    print(
        json.dumps(
            {
                "error": float((ours_out - stock).abs().max() / stock.abs().max()),
                "rows": float((torch.cat(alone) - together).abs().max() / together.abs().max()),
                "guided": float((torch.cat(scaled) - guided).abs().max() / guided.abs().max()),
                "takes_guidance": model.takes_guidance,
                "times": times.tolist(),
                "pictures": [list(pictures.shape), float(pictures.min()), float(pictures.max())],
                "shape": list(model.shape),
                "space": model.space,
                "sigma_max": model.sigma_max,
                "uniform": schedule("uniform", 3, model).tolist(),
                "own": model.model.model.model_sampling.sigma(torch.tensor([666.0, 333])).tolist(),
                "about": model.about,
                "groups": len(model.prompts.groups),
                "fingerprint": model.fingerprint,
                "nfes": list(result.pack.nfes),
                "refused": [
                    refused("no-such.safetensors", **options),
                    refused(str(path), host=str(folder)),
                    refused(str(path), host=sys.argv[1], width=65, height=64, device="cpu"),
                ],
            }
        )
    )


main()
