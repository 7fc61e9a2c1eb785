"""Take the pictures of ComfyUI for docs/images and the example workflows.

    COMFYUI_PATH=... python tools/sidebar_images.py [dark] [light] [training] [compare] [thumbnails]

They show a real ComfyUI with this checkout, the bundled model and its solver.
"""

import base64
import io
import json
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from s4s_core import load_solver, sample, save_solver  # noqa: E402
from s4s_core.demo import SOLVERS, load_demo  # noqa: E402
from s4s_core.table import SolverPack  # noqa: E402
from tools import comfy_browser, example_workflows  # noqa: E402

IMAGES = ROOT / "docs" / "images"
SOLVERS_SHOWN = {"emoji, few steps": (3, 4, 5), "emoji, fine": (6, 8, 10)}
THUMBNAIL = {"width": 720, "height": 430}
PLAIN = {
    "Comfy.Minimap.Visible": False,
    "Comfy.Graph.CanvasInfo": False,
    "LiteGraph.Canvas.MinFontSizeForLOD": 0,
}
TOOLS, TAB = 70, 390  # pixels used at the left of the page, without and with the tab
FIT = """
([margin, menus]) => {
  const { canvas } = window.app;
  const nodes = canvas.graph.nodes.filter(({ type }) => menus || type !== "MarkdownNote");
  const head = menus ? 100 : 0;
  const left = Math.min(...nodes.map((n) => n.pos[0]));
  const top = Math.min(...nodes.map((n) => n.pos[1])) - 30;
  const right = Math.max(...nodes.map((n) => n.pos[0] + n.size[0]));
  const bottom = Math.max(...nodes.map((n) => n.pos[1] + n.size[1]));
  const { width, height } = canvas.canvas.getBoundingClientRect();
  const fits = [(width - margin) / (right - left), (height - head) / (bottom - top)];
  const scale = 0.94 * Math.min(...fits);
  canvas.ds.scale = scale;
  const [x, y] = [(width + margin) / scale, (height + head) / scale];
  canvas.ds.offset = [(x - left - right) / 2, (y - top - bottom) / 2];
  canvas.setDirty(true, true);
}
"""


def thumbnail(pack: SolverPack, nfe: int, seed: int) -> str:
    """Draw four pictures with the bundled model and a solver; return a data URI."""
    model = load_demo(cfg=4.0)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(4, *model.shape, generator=generator)
    cond = model.conditions(4, generator)
    with torch.inference_mode():
        x = sample(model.denoise, noise * pack[nfe].sigmas[0], pack[nfe], cond=cond)
    pictures = ((x.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1)
    sheet = torch.cat([torch.cat(list(row), dim=1) for row in (pictures[:2], pictures[2:])])
    file = io.BytesIO()
    Image.fromarray(sheet.numpy()).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def write_solvers(folder: Path) -> None:
    """Write parts of the bundled solver as separate files with thumbnails."""
    whole = load_solver(SOLVERS["ve"])
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, nfes) in enumerate(SOLVERS_SHOWN.items()):
        scores = {str(nfe): whole.metadata["scores"][str(nfe)] for nfe in nfes}
        about = dict(whole.metadata) | {"name": name, "scores": scores}
        pack = SolverPack({nfe: whole[nfe] for nfe in nfes}, about)
        about["thumbnail"] = thumbnail(pack, nfes[-1], seed + 3)
        save_solver(folder / f"{name}.safetensors", pack.described(about))


def load(name: str) -> dict[str, Any]:
    """Load an example workflow."""
    return json.loads((example_workflows.FOLDER / f"{name}.json").read_text("utf-8"))


def run_shown(shown: Any, url: str) -> None:
    """Press Run, then wait until the queue is empty and the pictures are shown."""
    shown.evaluate("() => window.app.queuePrompt(0, 1)")
    shown.wait_for_timeout(1000)
    while True:
        queue = comfy_browser.get(f"{url}/queue")
        if not queue["queue_running"] and not queue["queue_pending"]:
            break
        shown.wait_for_timeout(500)
    shown.wait_for_timeout(2000)


def sidebar(opened: Any, url: str, theme: str) -> None:
    """The tab next to the first workflow, after a run."""
    comfy_browser.set_up(url, **{"Comfy.ColorPalette": theme}, **PLAIN)
    with comfy_browser.page(opened, url, 1500, 900) as shown:
        comfy_browser.open_workflow(shown, load("demo-quick-start"))
        comfy_browser.open_tab(shown)
        shown.click('[data-key="open/emoji, few steps.safetensors"]')
        shown.wait_for_selector(".s4s-plot")
        run_shown(shown, url)
        shown.evaluate(FIT, [TAB, True])
        shown.wait_for_timeout(1500)
        shown.screenshot(path=IMAGES / f"comfyui-sidebar-{theme}.png")


def training(opened: Any, url: str) -> None:
    """Training in the graph, shown in the tab, and then cancelled there."""
    comfy_browser.set_up(url, **PLAIN)
    with comfy_browser.page(opened, url, 1500, 900) as shown:
        comfy_browser.open_workflow(shown, load("train-in-the-graph"))
        comfy_browser.open_tab(shown)
        shown.evaluate("() => window.app.queuePrompt(0, 1)")
        shown.wait_for_selector(".s4s-preview")
        shown.wait_for_timeout(8000)
        shown.evaluate(FIT, [TAB, True])
        shown.wait_for_timeout(1000)
        shown.screenshot(path=IMAGES / "comfyui-training.png")
        shown.click('[data-key="cancel/graph"]')
        shown.wait_for_selector('[data-key="cancel/graph"]', state="detached")


def comparison(opened: Any, url: str) -> None:
    """The Compare node with its picture and its table."""
    comfy_browser.set_up(url, **PLAIN)
    with comfy_browser.page(opened, url, 1500, 900) as shown:
        comfy_browser.open_workflow(shown, load("compare"))
        run_shown(shown, url)
        shown.evaluate(FIT, [TOOLS, True])
        shown.wait_for_timeout(1000)
        shown.screenshot(path=IMAGES / "comfyui-compare.png")


def thumbnails(opened: Any, url: str) -> None:
    """The graph of every example workflow, with results for those that need no download."""
    comfy_browser.set_up(url, **PLAIN, **{"Comfy.Graph.CanvasMenu": False})
    for name in example_workflows.WORKFLOWS:
        with comfy_browser.page(opened, url, **THUMBNAIL) as shown:
            comfy_browser.open_workflow(shown, load(name))
            if name in ("demo-quick-start", "compare"):
                run_shown(shown, url)
            shown.evaluate("() => { window.app.extensionManager.focusMode = true; }")
            shown.add_style_tag(content="button:has(.pi-bars) { visibility: hidden; }")
            shown.wait_for_timeout(1000)
            shown.evaluate(FIT, [0, False])
            shown.wait_for_timeout(1000)
            box = shown.locator("#graph-canvas").bounding_box()
            shown.screenshot(
                path=example_workflows.FOLDER / f"{name}.jpg", type="jpeg", quality=80, clip=box
            )


PICTURES = {
    "dark": lambda opened, url: sidebar(opened, url, "dark"),
    "light": lambda opened, url: sidebar(opened, url, "light"),
    "training": training,
    "compare": comparison,
    "thumbnails": thumbnails,
}


def main() -> None:
    if comfy_browser.missing():
        sys.exit(f"Cannot take pictures: {comfy_browser.missing()}.")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "comfyui"
        with comfy_browser.comfyui(folder) as url, comfy_browser.browser() as opened:
            write_solvers(folder / "models" / "s4s_solvers")
            urllib.request.urlopen(f"{url}/api/s4s/solvers").close()
            for name in sys.argv[1:] or PICTURES:
                PICTURES[name](opened, url)


if __name__ == "__main__":
    main()
