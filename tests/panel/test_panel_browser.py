"""The panel in a real browser, end to end on the CPU; needs Chromium."""

import io
import os
import subprocess
import sys
from pathlib import Path

import browsers
import numpy as np
import pytest
from panels import ROOT, Panel

from s4s_core import load_solver

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(browsers.reason_to_skip()), reason=browsers.reason_to_skip() or "-"),
]
TRAINING_SECONDS = 1800
GRID = "document.querySelector('#s4s-job .s4s-sheet img')"


def pixels(data):
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def command_line(home, *arguments):
    env = os.environ | {"S4S_HOME": str(home), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-m", "trainer", *arguments], cwd=ROOT, env=env, check=True)


def tiles_of_the_command_line(home, solver, folder, count):
    """Return the pictures that `sample` makes from seed 0, cut out of its sheet."""
    out = folder / "samples.png"
    options = ["--nfe", "5", "--count", str(count), "--seed", "0", "--out", str(out)]
    command_line(home, "sample", "--solver", str(solver), *options)
    sheet, side, margin = pixels(out.read_bytes()), 64, 6
    left = sheet.shape[1] - count * (side + margin)
    starts = [left + k * (side + margin) for k in range(count)]
    return [sheet[margin : margin + side : 2, x : x + side : 2] for x in starts]


def test_train_download_and_compare(tmp_path):
    home = tmp_path / "home"
    with Panel(home) as panel, browsers.opened(panel.url) as page:
        page.train()
        page.wait_for("/[1-9]\\d*%/.test(document.querySelector('#s4s-job').innerText)", 600)
        first = page.status()[1]
        page.reload()
        page.tab("Jobs")
        page.wait_for(f"{GRID} && document.querySelector('#s4s-job svg')", TRAINING_SECONDS)
        assert page.status()[0] in ("running", "done") and page.status()[1] >= first
        page.wait_until_done(TRAINING_SECONDS)
        assert len(page.sources("#s4s-job")) == 1

        page.tab("Solvers")
        with page.page.expect_download() as download:
            page.page.locator("a.s4s-button:visible").click()
        saved = tmp_path / "downloaded.safetensors"
        download.value.save_as(saved)
        (kept,) = (home / "solvers").glob("*.safetensors")
        assert saved.read_bytes() == kept.read_bytes() and load_solver(saved).nfes == (5,)

        page.tab("Compare")
        page.page.locator("#s4s-render").click()
        page.page.wait_for_selector(".s4s-slider:visible", timeout=600_000)
        shown = pixels(page.sources(".s4s-three")[2])
        assert page.faults == []

    scale = shown.shape[0] // 64
    small = shown[scale // 2 :: scale, scale // 2 :: scale]
    tiles = tiles_of_the_command_line(home, saved, tmp_path, 4)
    for number, tile in enumerate(tiles):
        top, left = 32 * (number // 2), 32 * (number % 2)
        ours = small[top : top + 32, left : left + 32]
        assert np.abs(ours - tile).max() <= 1
        assert tile.std() > 5  # a picture, not a blank


def test_a_killed_panel_loses_nothing(tmp_path):
    panel = Panel(tmp_path / "home")
    try:
        for attempt in range(3):
            panel.start()
            with browsers.opened(panel.url) as page:
                if attempt == 0:
                    page.train(Budget=2500)
                page.tab("Jobs")
                page.page.wait_for_selector("#s4s-job [data-status]:visible")
                assert page.status()[0] in ("queued", "running", "done")
            panel.kill()
        panel.start()
        with browsers.opened(panel.url) as page:
            page.tab("Jobs")
            page.page.wait_for_selector("#s4s-job [data-status]:visible")
            page.wait_until_done(TRAINING_SECONDS)
            assert page.page.locator("#s4s-jobs input[type=radio]").count() == 1
    finally:
        panel.kill()


def test_files_are_added_refused_and_deleted(tmp_path):
    from s4s_core.demo import SOLVERS

    home = tmp_path / "home"
    with Panel(home) as panel, browsers.opened(panel.url, dark=True) as page:
        page.tab("Solvers")
        page.accordion("Add a file")
        page.page.set_input_files("input[type=file]", str(SOLVERS["ve"]))
        page.page.wait_for_selector(".s4s-solver:visible")
        assert [p.read_bytes() for p in (home / "solvers").iterdir()] == [
            SOLVERS["ve"].read_bytes()
        ]
        bad = Path(tmp_path / "bad.safetensors")
        bad.write_bytes(b"not a solver")
        page.reload()
        page.tab("Solvers")
        page.accordion("Add a file")
        page.page.set_input_files("input[type=file]", str(bad))
        page.page.get_by_text("This file: cannot be used").first.wait_for()
        assert len(list((home / "solvers").iterdir())) == 1
        page.reload()
        page.tab("Solvers")
        page.page.wait_for_selector(".s4s-solver:visible")
        page.page.get_by_role("button", name="Delete", exact=True).locator("visible=true").click()
        page.page.get_by_role("button", name="Yes, delete this file").click()
        page.page.get_by_text("No solver files yet").first.wait_for()
        assert list((home / "solvers").iterdir()) == []
        overflow = "document.documentElement.scrollWidth - window.innerWidth"
        assert page.page.evaluate(overflow) <= 0 and page.faults == []
