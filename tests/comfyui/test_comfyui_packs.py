"""Other packs' daily tools with sampler and scheduler `s4s`, in a real ComfyUI.

Set COMFYUI_PATH, and COMFYUI_PACKS to the folders of ComfyUI-Impact-Pack and
ComfyUI_UltimateSDUpscale, joined as in PATH.
"""

import os

import pytest
from comfyui_graphs import CFG, PROMPTS, graph, ksampler, latents, node, saving
from comfyui_server import Server

from s4s_core import fit, save_solver
from s4s_core.demo import load_demo

pytestmark = pytest.mark.host

SIDE = 64
STOCK = {"sampler_name": "dpmpp_2m", "scheduler": "simple"}
OURS = {"sampler_name": "s4s", "scheduler": "s4s"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path, packs = (os.environ.get(name) for name in ("COMFYUI_PATH", "COMFYUI_PACKS"))
    if not path or not packs:
        pytest.skip("COMFYUI_PATH or COMFYUI_PACKS is not set")
    running = Server(path, tmp_path_factory.mktemp("packs"), packs=packs.split(os.pathsep))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def solver(server):
    """A solver for the demo with the noise levels of Stable Diffusion."""
    folder = server.base / "models" / "s4s_solvers"
    folder.mkdir(parents=True, exist_ok=True)
    result = fit(load_demo("vp", CFG), (4, 6, 8), budget=4000, batch=64)
    save_solver(folder / "vp.safetensors", result.pack)
    return "vp.safetensors"


def picture():
    """Nodes for a picture of SIDE pixels: four drawings of the demo's, enlarged."""
    return {
        "k": ksampler(3, 8),
        "v": node("VAEDecode", samples=["k", 0], vae=["1", 4]),
        "u": node(
            "ImageScale",
            image=["v", 0],
            upscale_method="bicubic",
            width=SIDE,
            height=SIDE,
            crop="disabled",
        ),
    }


def middle():
    """Nodes for the detailer's segment: the middle of the picture."""
    return {
        "m0": node("SolidMask", value=0.0, width=SIDE, height=SIDE),
        "m1": node("SolidMask", value=1.0, width=SIDE // 2, height=SIDE // 2),
        "m": node(
            "MaskComposite",
            destination=["m0", 0],
            source=["m1", 0],
            x=SIDE // 4,
            y=SIDE // 4,
            operation="add",
        ),
        "g": node(
            "MaskToSEGS",
            mask=["m", 0],
            combined=False,
            crop_factor=2.0,
            bbox_fill=False,
            drop_size=1,
            contour_fill=False,
        ),
    }


def changes(server, solver, tool, extra=None):
    """Mean absolute change of the picture by a tool, with `s4s` and with stock settings."""
    steps = {"ours": (OURS, "3"), "theirs": (STOCK, "1")}
    nodes = picture() | (extra or {}) | {"before": node("VAEEncode", pixels=["u", 0], vae=["1", 4])}
    for name, (settings, model) in steps.items():
        nodes[name] = tool(model=[model, 0], **settings)
        nodes[f"encoded {name}"] = node("VAEEncode", pixels=[name, 0], vae=["1", 4])
    encoded = ["before", *(f"encoded {name}" for name in steps)]
    outputs = server.run(graph(solver, batch=1, kind="EPS", **nodes, **saving(*encoded)))
    before, *after = (latents(server, outputs, name) for name in encoded)
    return [float((each - before).abs().mean()) for each in after]


@pytest.mark.parametrize("denoise", [0.2, 0.4])
@pytest.mark.parametrize("steps", [6, 20])
def test_the_tile_upscaler_changes_what_stock_changes(server, solver, denoise, steps):
    def tool(**settings):
        return node(
            "UltimateSDUpscaleNoUpscale",
            upscaled_image=["u", 0],
            vae=["1", 4],
            seed=5,
            steps=steps,
            cfg=CFG,
            denoise=denoise,
            mode_type="Linear",
            tile_width=SIDE,
            tile_height=SIDE,
            mask_blur=0,
            tile_padding=0,
            seam_fix_mode="None",
            seam_fix_denoise=1.0,
            seam_fix_width=64,
            seam_fix_mask_blur=8,
            seam_fix_padding=16,
            force_uniform_tiles=True,
            tiled_decode=False,
            batch_size=1,
            **PROMPTS,
            **settings,
        )

    ours, theirs = changes(server, solver, tool)
    print(f"tile upscaler, denoise {denoise}, {steps} steps: {ours:.4f}, stock {theirs:.4f}")
    assert theirs > 0 and 0.8 < ours / theirs < 1.2, (ours, theirs)


@pytest.mark.parametrize("denoise", [0.2, 0.4, 0.7])
@pytest.mark.parametrize("steps", [6, 20])
def test_the_detailer_changes_what_stock_changes(server, solver, denoise, steps):
    def tool(**settings):
        return node(
            "DetailerForEach",
            image=["u", 0],
            segs=["g", 0],
            clip=["1", 5],
            vae=["1", 4],
            guide_size=SIDE,
            guide_size_for=True,
            max_size=SIDE,
            seed=5,
            steps=steps,
            cfg=CFG,
            denoise=denoise,
            feather=2,
            noise_mask=True,
            force_inpaint=True,
            wildcard="",
            cycle=1,
            **PROMPTS,
            **settings,
        )

    ours, theirs = changes(server, solver, tool, middle())
    print(f"detailer, denoise {denoise}, {steps} steps: {ours:.4f}, stock {theirs:.4f}")
    assert theirs > 0 and 0.8 < ours / theirs < 1.2, (ours, theirs)
