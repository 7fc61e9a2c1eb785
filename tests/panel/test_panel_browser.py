"""The panel in a real browser, end to end on the CPU; needs Chromium."""

import io
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

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
CHARTS = "[...document.querySelectorAll('.s4s-charts')].find((e) => e.offsetParent).innerHTML"
GRID = "document.querySelector('#s4s-job .s4s-sheet img')"


def pixels(data):
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(np.int16)


def sheet_of_the_command_line(home, solver, folder, count):
    """Return the sheet of pictures that `sample` makes from seed 0."""
    out = folder / "samples.png"
    env = os.environ | {"S4S_HOME": str(home), "OMP_NUM_THREADS": "1"}
    options = ["--nfe", "5", "--count", str(count), "--seed", "0", "--out", str(out)]
    command = [sys.executable, "-m", "trainer", "sample", "--solver", str(solver), *options]
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    return pixels(out.read_bytes())


def contains(sheet, picture):
    """Is the picture somewhere on the sheet, enlarged by a whole factor?"""
    for factor, top, left in ((f, y, x) for f in range(2, 9) for y in range(f) for x in range(f)):
        part = sheet[top::factor, left::factor]
        if all(a >= b for a, b in zip(part.shape, picture.shape, strict=True)):
            windows = np.lib.stride_tricks.sliding_window_view(part, picture.shape)
            if (np.abs(windows - picture).max(axis=(-3, -2, -1)) <= 1).any():
                return True
    return False


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
    sheet = sheet_of_the_command_line(home, saved, tmp_path, 4)
    for top, left in ((0, 0), (0, 32), (32, 0), (32, 32)):
        picture = small[top : top + 32, left : left + 32]
        assert picture.std() > 5  # not blank
        assert contains(sheet, picture)


def test_a_killed_panel_loses_nothing(tmp_path):
    panel = Panel(tmp_path / "home")
    try:
        for attempt in range(3):
            panel.start()
            with browsers.opened(panel.url) as page:
                if attempt == 0:
                    page.page.get_by_label("Also for img2img").check()
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
            page.tab("Solvers")
            charts = page.page.locator(".s4s-charts:visible")
            before = charts.inner_html()
            page.page.get_by_label("5 steps at strength 0.3", exact=True).check()
            page.page.wait_for_function(f"(before) => {CHARTS} !== before", arg=before)
            assert page.faults == []
    finally:
        panel.kill()


def test_a_page_left_open_goes_on_when_the_panel_runs_again(tmp_path):
    panel = Panel(tmp_path / "home").start()
    port = panel.address.rpartition(":")[2]
    note = "document.querySelector('#s4s-lost')"
    try:
        with browsers.opened(panel.url) as page:
            run = page.page.locator("#s4s-lost").get_attribute("data-run")
            assert page.page.evaluate(f"{note}.hidden")
            panel.kill()
            page.page.wait_for_function(f"{note}.hidden === false")
            panel.start("--port", port)
            page.page.wait_for_function(
                f"{note} && {note}.hidden && {note}.dataset.run !== '{run}'"
            )
            page.settle()
            page.train(Budget=2500)
            page.tab("Jobs")
            page.page.wait_for_selector("#s4s-job [data-status]:visible")
    finally:
        panel.kill()


class Foreign(BaseHTTPRequestHandler):
    """A program that answers everything, and notes which paths it was asked for."""

    asked: ClassVar = []

    def do_GET(self):
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>Not the panel.</html>")

    do_POST = do_GET

    def log_message(self, *_):
        pass


@contextmanager
def foreign_program(port):
    """Answer everything on a port."""
    with ThreadingHTTPServer(("127.0.0.1", port), Foreign) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield
        http.shutdown()


def test_what_was_typed_stays_until_the_user_reloads(tmp_path):
    """Neither a foreign program on the panel's port nor the next panel makes the page reload."""
    panel = Panel(tmp_path / "home").start()
    port = int(panel.address.rpartition(":")[2])
    lost, again = (f"document.querySelector('#s4s-{name}')" for name in ("lost", "again"))
    try:
        with browsers.opened(panel.url) as page:
            prompts = page.page.get_by_label("Prompts").first
            prompts.fill("a red fox")
            panel.kill()
            page.page.locator("#s4s-estimate").click()  # Gradio notices that the panel is away
            page.page.wait_for_function(f"{lost}.hidden === false")
            with foreign_program(port):
                with page.page.expect_response("**/s4s-run"):
                    pass
                with page.page.expect_response("**/s4s-run"):
                    pass
                assert not page.page.evaluate(f"{lost}.hidden")
            assert "/" not in Foreign.asked
            panel.start("--port", str(port))
            page.page.wait_for_function(f"{again}.hidden === false")
            assert prompts.input_value() == "a red fox" and page.page.evaluate(f"{lost}.hidden")
            page.page.get_by_role("link", name="Reload").click()
            page.page.wait_for_function(f"{again} && {again}.hidden")
            page.settle()
            assert page.page.get_by_label("Prompts").first.input_value() == ""
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
