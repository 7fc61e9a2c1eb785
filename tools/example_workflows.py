"""Write example_workflows/*.json from the short declarations below.

python tools/example_workflows.py                # write the workflows
python tools/example_workflows.py --record URL   # first record the nodes of a running ComfyUI
"""

import argparse
import json
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.workflow_graph import (  # noqa: E402
    COLUMN,
    DEFINITIONS,
    FILES,
    Definition,
    Graph,
    Node,
    Wire,
    definitions,
    reduced,
)

FOLDER = ROOT / "example_workflows"
OUR_PREFIX = "S4S"
SD15, SD15_SOLVER = "v1-5-pruned-emaonly-fp16.safetensors", "sd15.safetensors"

GUIDE = "\n\nFor more, see the *S4S* tab in the sidebar and the help (?) of each node."
PROMPT = "a lighthouse on a cliff at dawn, oil painting, warm light"
AVOID = "blurry, low quality, text, watermark"


def demo_quick_start(graph: Graph) -> None:
    """The bundled model on any CPU: S4S at 5 steps against stock samplers at 5 and 20."""
    demo = graph("S4SDemoModel", category="happy face", kind="EDM", batch_size=4)
    solver = graph("S4SLoadSolver", solver="demo.safetensors")
    applied = graph("S4SApplySolver", model=demo["model"], solver=solver["solver"])
    for title, model, steps, sampler, scheduler in (
        ("S4S: 5 steps", applied["MODEL"], 5, "s4s", "s4s"),
        ("Stock: 5 steps", demo["model"], 5, "euler", "karras"),
        ("Reference: 20 steps", demo["model"], 20, "uni_pc_bh2", "karras"),
    ):
        wires = {name: demo[name] for name in ("positive", "negative")}
        names: dict[str, Any] = {"sampler": sampler, "scheduler": scheduler, "title": title}
        samples = sampled(graph, model, wires, demo["latent"], 4.0, steps, seed=7, **names)
        preview(graph, samples, demo["vae"], size=256, title=title)
    graph.note(
        "## First pictures\nPress *Run*. The small model that comes with S4S draws four emoji "
        "three times from the same noise: with 5 steps of a learned solver, with 5 steps of a "
        "stock sampler, and with 20 steps as the reference for both.\n\nTo use a solver: **Load "
        "Solver → Apply Solver → KSampler** with sampler `s4s` and scheduler `s4s`." + GUIDE
    )


def text_to_image(
    checkpoint: str, solver: str, size: int, cfg: float, family: str
) -> Callable[[Graph], None]:
    """Text to image with a checkpoint and the stock KSampler."""

    def declare(graph: Graph) -> None:
        loaded, applied = with_solver(graph, checkpoint, solver)
        latent = graph("EmptyLatentImage", width=size, height=size, batch_size=1)
        samples = sampled(graph, applied, encoded(graph, loaded), latent["LATENT"], cfg, 6)
        save_images(graph, samples, loaded["VAE"], f"S4S_{family}")
        graph.note(
            f"## {family} in 6 steps\nChoose your checkpoint, and in **Load Solver** the solver "
            "trained for it. No solver yet? The workflow *train-your-checkpoint* makes one in a "
            "single run.\n\n`steps` must be one of the solver's step counts, and `cfg` should be "
            f"the value it was trained for (here {cfg:g})." + GUIDE
        )

    return declare


def image_to_image(graph: Graph) -> None:
    """Partial noise, then the last steps of a solver."""
    loaded, applied = with_solver(graph, SD15, SD15_SOLVER)
    picture = graph("LoadImage", image="example.png")
    latent = graph("VAEEncode", pixels=picture["IMAGE"], vae=loaded["VAE"])
    wires = encoded(graph, loaded)
    samples = sampled(graph, applied, wires, latent["LATENT"], 7.0, 6, denoise=0.6)
    save_images(graph, samples, loaded["VAE"], "S4S_img2img")
    graph.note(
        "## Image to image\nThis works as with stock samplers: encode your picture and set "
        "`denoise` below 1. The solver starts in the middle of its table, at the noise level you "
        "asked for, and makes `steps` steps." + GUIDE
    )


def inpaint(graph: Graph) -> None:
    """Redraw the masked part of a picture."""
    loaded, applied = with_solver(graph, SD15, SD15_SOLVER)
    picture = graph("LoadImage", image="example.png")
    latent = graph("VAEEncode", pixels=picture["IMAGE"], vae=loaded["VAE"])
    masked = graph("SetLatentNoiseMask", samples=latent["LATENT"], mask=picture["MASK"])
    wires = encoded(graph, loaded)
    samples = sampled(graph, applied, wires, masked["LATENT"], 7.0, 6, denoise=0.8)
    save_images(graph, samples, loaded["VAE"], "S4S_inpaint")
    graph.note(
        "## Inpainting\nRight-click the picture, choose *Open in MaskEditor* and paint over what "
        "should change. The rest of the latent stays exactly as it is." + GUIDE
    )


def flux(graph: Graph) -> None:
    """A flow model with a guider: the solver as SAMPLER and SIGMAS."""
    model = graph("UNETLoader", unet_name="flux1-dev.safetensors", weight_dtype="default")
    clip = graph(
        "DualCLIPLoader",
        clip_name1="clip_l.safetensors",
        clip_name2="t5xxl_fp16.safetensors",
        type="flux",
    )
    vae = graph("VAELoader", vae_name="ae.safetensors")
    text = graph("CLIPTextEncode", clip=clip["CLIP"], text=PROMPT)
    guided = graph("FluxGuidance", conditioning=text["CONDITIONING"], guidance=3.5)
    guider = graph("BasicGuider", model=model["MODEL"], conditioning=guided["CONDITIONING"])
    solver = graph("S4SLoadSolver", solver="flux-dev.safetensors")
    sampler = graph("S4SSampler", solver=solver["solver"], steps=6, denoise=1.0)
    noise = graph("RandomNoise", noise_seed=0)
    latent = graph("EmptySD3LatentImage", width=1024, height=1024, batch_size=1)
    samples = graph(
        "SamplerCustomAdvanced",
        noise=noise["NOISE"],
        guider=guider["GUIDER"],
        sampler=sampler["sampler"],
        sigmas=sampler["sigmas"],
        latent_image=latent["LATENT"],
    )
    save_images(graph, samples["output"], vae["VAE"], "S4S_flux")
    graph.note(
        "## Flux in 6 steps\n**Sampler (S4S)** outputs a sampler and its noise levels: connect "
        "both. SD3 and other flow models work the same way, and so does SamplerCustom." + GUIDE
    )


def train_demo(graph: Graph) -> None:
    """Train in the graph on the bundled model, in minutes on a CPU."""
    demo = graph("S4SDemoModel", category="happy face", kind="EDM", batch_size=4)
    inputs: dict[str, Any] = {
        name: demo[name] for name in ("model", "positive", "negative", "vae", "clip")
    }
    trained = graph(
        "S4STrainSolver",
        **inputs,
        latent_image=demo["latent"],
        cfg=4.0,
        nfes="5",
        effort="quick",
        prompts="animal\nbird\nflower",
        size=(COLUMN, 720),
    )
    save_solver(graph, trained, "my demo solver")
    graph.note(
        "## Train a solver here\nPress *Run* to train a 5-step solver for the small model that "
        "comes with S4S. It takes a few minutes. The node and the *S4S* tab show progress, time "
        "left and pictures. You can cancel at any time and run again to continue."
    )


def train_checkpoint(graph: Graph) -> None:
    """Train in the graph for a checkpoint, exactly as it is connected."""
    loaded = graph("CheckpointLoaderSimple", ckpt_name=SD15)
    latent = graph("EmptyLatentImage", width=512, height=512, batch_size=1)
    trained = graph(
        "S4STrainSolver",
        model=loaded["MODEL"],
        **encoded(graph, loaded),
        latent_image=latent["LATENT"],
        vae=loaded["VAE"],
        clip=loaded["CLIP"],
        cfg=7.0,
        nfes="5,6,8",
        effort="normal",
        prompts="a portrait of an old fisherman\na busy street in the rain at night\n"
        "a bowl of ramen, studio photo\na castle in the clouds, concept art",
    )
    save_solver(graph, trained, "sd15")
    graph.note(
        "## A solver for your checkpoint\nConnect what you use: training includes all LoRAs, "
        "ControlNets and patches between the checkpoint and **Train Solver**. Set your usual size "
        "and `cfg`, and prompts like those you write. Training needs no more memory than sampling."
        "\n\nThe file is saved to `models/s4s_solvers` and shows in the *S4S* tab."
    )


def compare(graph: Graph) -> None:
    """Teacher, stock samplers and solver from the same noise."""
    demo = graph("S4SDemoModel", category="fruit", kind="EDM", batch_size=4)
    solver = graph("S4SLoadSolver", solver="demo.safetensors")
    inputs: dict[str, Any] = {n: demo[n] for n in ("model", "positive", "negative", "vae")}
    sheet = graph(
        "S4SCompare",
        **inputs,
        solver=solver["solver"],
        latent_image=demo["latent"],
        seed=1,
        steps=5,
        cfg=4.0,
        samplers="euler, dpmpp_2m, uni_pc_bh2, ipndm",
        scheduler="karras",
    )
    graph("PreviewImage", images=sheet["comparison"], size=(520, 640))
    graph("PreviewAny", source=sheet["table"], size=(520, 230))
    graph.note(
        "## Which sampler is closest?\nAll rows start from the same noise and make the same number "
        "of model calls, except for the teacher. Replace the Demo Model with your own checkpoint "
        "and choose your solver in **Load Solver**." + GUIDE
    )


WORKFLOWS: dict[str, Callable[[Graph], None]] = {
    "demo-quick-start": demo_quick_start,
    "text-to-image-sd15": text_to_image(SD15, SD15_SOLVER, 512, 7.0, "SD1.5"),
    "text-to-image-sdxl": text_to_image(
        "sd_xl_base_1.0.safetensors", "sdxl.safetensors", 1024, 6.0, "SDXL"
    ),
    "image-to-image": image_to_image,
    "inpaint": inpaint,
    "flux": flux,
    "train-in-the-graph": train_demo,
    "train-your-checkpoint": train_checkpoint,
    "compare": compare,
}

# Shared parts


def with_solver(graph: Graph, checkpoint: str, solver: str) -> tuple[Node, Wire]:
    """(checkpoint loader, MODEL with the solver applied)."""
    loaded = graph("CheckpointLoaderSimple", ckpt_name=checkpoint)
    file = graph("S4SLoadSolver", solver=solver)
    applied = graph("S4SApplySolver", model=loaded["MODEL"], solver=file["solver"])
    return loaded, applied["MODEL"]


def encoded(graph: Graph, loaded: Node) -> dict[str, Any]:
    """Encode both prompts, as inputs of a sampling node."""
    texts = {"positive": PROMPT, "negative": AVOID}
    return {
        name: graph("CLIPTextEncode", clip=loaded["CLIP"], text=text, title=name.title())[
            "CONDITIONING"
        ]
        for name, text in texts.items()
    }


def sampled(
    graph: Graph,
    model: Wire,
    wires: dict[str, Any],
    latent: Wire,
    cfg: float,
    steps: int,
    sampler: str = "s4s",
    scheduler: str = "s4s",
    denoise: float = 1.0,
    seed: int = 1,
    title: str | None = None,
) -> Wire:
    """Add a stock KSampler and return its LATENT."""
    settings: dict[str, Any] = {"seed": seed, "steps": steps, "cfg": cfg, "denoise": denoise}
    settings |= {"sampler_name": sampler, "scheduler": scheduler}
    wires = wires | {"model": model, "latent_image": latent}
    return graph("KSampler", title=title, **wires, **settings)["LATENT"]


def preview(graph: Graph, latent: Wire, vae: Wire, size: int, title: str | None = None) -> None:
    """Decode small pictures and show them enlarged without smoothing."""
    image = graph("VAEDecode", samples=latent, vae=vae)
    sides: dict[str, Any] = {"width": size, "height": size, "crop": "disabled"}
    large = graph("ImageScale", image=image["IMAGE"], upscale_method="nearest-exact", **sides)
    graph("PreviewImage", images=large["IMAGE"], title=title)


def save_images(graph: Graph, latent: Wire, vae: Wire, prefix: str) -> None:
    """Decode and save the pictures."""
    image = graph("VAEDecode", samples=latent, vae=vae)
    graph("SaveImage", images=image["IMAGE"], filename_prefix=prefix)


def save_solver(graph: Graph, trained: Node, name: str) -> None:
    """Save a trained solver, and show its preview and report."""
    graph("S4SSaveSolver", solver=trained["solver"], filename=name)
    graph("PreviewImage", images=trained["preview"], size=(420, 420))
    graph("PreviewAny", source=trained["report"], size=(420, 260))


# Files


def record(object_info: dict[str, Any]) -> dict[str, Definition]:
    """Reduce /object_info to the nodes of this pack and those that the workflows use."""
    known = {name: reduced(info) for name, info in object_info.items()}
    used = {node.kind for name in WORKFLOWS for node in build(name, known).nodes}
    ours = {name for name in known if name.startswith(OUR_PREFIX)}
    recorded = {name: known[name] for name in sorted(used | ours)}
    for definition in recorded.values():
        for key in FILES:
            definition["inputs"].get(key, {}).pop("options", None)
    return recorded


def build(name: str, known: dict[str, Definition] | None = None) -> Graph:
    """Build a workflow by name, with the recorded definitions unless others are given."""
    graph = Graph(known or definitions())
    WORKFLOWS[name](graph)
    return graph


def as_text(value: Any) -> str:
    """Format JSON as it is stored."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--record", metavar="URL", help="address of a running ComfyUI")
    options = parser.parse_args()
    if options.record:
        with urllib.request.urlopen(f"{options.record.rstrip('/')}/object_info") as answer:
            DEFINITIONS.write_text(as_text(record(json.load(answer))), encoding="utf-8")
    for name in WORKFLOWS:
        (FOLDER / f"{name}.json").write_text(as_text(build(name).workflow()), encoding="utf-8")


if __name__ == "__main__":
    main()
