"""Prompts for a real ComfyUI around the demo model, and what the core gives for them."""

import torch
from safetensors.torch import load_file

from s4s_core import sample
from s4s_core.demo import SOLVERS, load_demo
from s4s_core.solver_file import load_solver

CATEGORY, CFG = "animal face", 4.0
PROMPTS = {"positive": ["1", 1], "negative": ["1", 2]}
DEMO = {"model": ["1", 0], "latent_image": ["1", 3], "vae": ["1", 4], **PROMPTS}
TEACHER = {"teacher_sampler": "auto", "teacher_scheduler": "auto", "teacher_steps": 20}


def node(class_type, /, **inputs):
    return {"class_type": class_type, "inputs": inputs}


def graph(solver="demo.safetensors", batch=2, kind="EDM", **more):
    """A prompt with the demo model at node 1, its solver at 2 and the two joined at 3."""
    return {
        "1": node("S4SDemoModel", category=CATEGORY, kind=kind, batch_size=batch),
        "2": node("S4SLoadSolver", solver=solver),
        "3": node("S4SApplySolver", model=["1", 0], solver=["2", 0]),
        **more,
    }


def ksampler(seed, steps=5, model="3", latent=("1", 3), **more):
    given = {"sampler_name": "s4s", "scheduler": "s4s", "denoise": 1.0} | more
    given |= {"model": [model, 0], "latent_image": list(latent)} | PROMPTS
    return node("KSampler", seed=seed, steps=steps, cfg=CFG, **given)


def own_sampler(seed, steps=5):
    links = {"model": ["1", 0], "solver": ["2", 0], "latent_image": ["1", 3]} | PROMPTS
    return node("S4SKSampler", seed=seed, steps=steps, cfg=CFG, denoise=1.0, **links)


def latents(server, outputs, name):
    """Return what a node of `saving` saved."""
    file = outputs[f"save {name}"]["latents"][0]
    return load_file(server.base / "output" / file["subfolder"] / file["filename"])["latent_tensor"]


def by_core(seed, steps=5, batch=2, pack=None, category=CATEGORY):
    """Return the core's result for the noise of a seed, scaled as the host scales it."""
    model = load_demo("ve", CFG)
    noise = torch.randn(batch, 3, 32, 32, generator=torch.manual_seed(seed))
    x = noise * (1 + model.sigma_max**2) ** 0.5
    label = torch.full((batch,), model.classes.index(category))
    return sample(model.denoise, x, (pack or load_solver(SOLVERS["ve"]))[steps], label)


def training(name, seed=0, nfes="5", effort="quick"):
    """A prompt that trains on the demo model, with all categories, and saves the solver."""
    classes = "\n".join(load_demo().classes)
    options = {"nfes": nfes, "effort": effort, "seed": seed, "prompts": classes, **TEACHER}
    return graph(
        t=node("S4STrainSolver", cfg=CFG, clip=["1", 5], **DEMO, **options),
        s=node("S4SSaveSolver", solver=["t", 0], filename=name),
        p=node("PreviewImage", images=["t", 1]),
    )


def saving(*names):
    """Nodes `save NAME` that save the latents of these nodes."""
    return {f"save {n}": node("SaveLatent", samples=[n, 0], filename_prefix=n) for n in names}
