"""Take the docs' pictures of the panel: each tab, light and dark, in headless Chromium.

    python tools/panel_screenshots.py [--home FOLDER]

This first trains two small solvers for the demo model and starts a third, so that there is
something to see. Trained solvers in --home are reused. The Compare tab shows the demo's solver.
"""

import argparse
import io
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

import browsers  # noqa: E402
from panels import Panel  # noqa: E402
from PIL import Image  # noqa: E402

from s4s_core.app.folders import DEMO, DEMO_SOLVER  # noqa: E402
from s4s_core.app.jobs import Job, list_jobs  # noqa: E402
from s4s_core.app.pictures import save_png  # noqa: E402

IMAGES = ROOT / "docs" / "images"
TABS = ("Train", "Jobs", "Solvers", "Compare")
SEED, COUNT = 3, 16


def prepare() -> tuple[Job, Job]:
    """Make jobs and a comparison in S4S_HOME; return a finished and a running job."""
    from s4s_core import load_solver
    from trainer import rendering
    from trainer.config import TrainConfig
    from trainer.jobs import queue_job
    from trainer.models import ModelChoice

    wanted = {"emoji 4 to 6": (4, 5, 6), "emoji 8": (8,)}
    known = {view.name: Job(view.id) for view in list_jobs()}
    for name, nfes in wanted.items():
        if name not in known:
            config = TrainConfig(name=name, nfes=nfes, effort="quick", budget=3000)
            known[name] = queue_job(config)
    for name in wanted:
        while (view := known[name].view()).status in ("queued", "running"):
            time.sleep(1)
        assert view.status == "done", view
    if rendering.rendering_state(rendering.compare_home())[0] is None:
        pack = load_solver(DEMO_SOLVER)
        rendering.render(ModelChoice(), pack, rendering.compare_home(), 5, SEED, COUNT)
    return known["emoji 4 to 6"], queue_job(
        TrainConfig(name="emoji as flow", model=ModelChoice("demo-flow"), nfes=(5,))
    )


def shoot(page: Any, suffix: str, job: str) -> None:
    """Take one picture of each tab, with `job` selected."""
    page.page.get_by_label("4", exact=True).first.check()
    page.page.locator("#s4s-estimate").click()
    page.page.get_by_text("Peak memory").wait_for(timeout=300_000)
    for tab in TABS:
        page.tab(tab)
        if tab == "Jobs":
            page.page.locator(f"#s4s-jobs input[value='{job}']").check()
        if tab == "Compare":
            page.page.locator("#s4s-compare-solver input").click()
            page.page.get_by_role("option", name=DEMO).click()
            page.fill("Seed", SEED)
            page.fill("number input for Pictures", COUNT)
        time.sleep(4)  # let the page settle
        path = IMAGES / f"panel-{tab.lower()}-{suffix}.png"
        data = page.page.screenshot(full_page=True)
        small = Image.open(io.BytesIO(data)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        save_png(path, small)
        print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--home", help="folder for jobs and solvers (default: a temporary one)")
    home = parser.parse_args().home or tempfile.mkdtemp(prefix="s4s-shots-")
    os.environ["S4S_HOME"] = home
    job, running = prepare()
    try:
        with Panel(home) as panel:
            for suffix in ("light", "dark"):
                with browsers.opened(panel.url, dark=suffix == "dark") as page:
                    shoot(page, suffix, job.id)
    finally:
        running.delete()


if __name__ == "__main__":
    main()
