"""The page under the versions of Gradio that hosts pin, each in its own environment.

The panel needs no torch; the queue runs in the tests' interpreter, which has it. Set S4S_TEST_ENVS
to a folder to keep the environments between runs.
"""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import browsers
import pytest
from panels import ROOT, Panel

from s4s_core.demo import SOLVERS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.internet,
    pytest.mark.skipif(bool(browsers.reason_to_skip()), reason=browsers.reason_to_skip() or "-"),
]

PINS = {
    "3.41.2": ["fastapi==0.94.0", "httpx==0.24.1", "pydantic<2", "huggingface_hub<0.26", "numpy<2"],
    "4.40.0": [
        *("fastapi==0.104.1", "pydantic==2.8.2", "huggingface_hub<0.26", "starlette<0.28"),
        "numpy<2",
    ],
}
TRAINING_SECONDS = 1800
QUEUE = """
import time
from dataclasses import replace
from s4s_core.app.folders import jobs_home
from s4s_core.app.jobs import RUNNER_LOCK
from s4s_core.app.processes import trainer_command
from s4s_core.lock import Lock
from trainer.jobs.runner import Runner

class Here(Runner):
    # The panel's Python has no torch: jobs run in this one.
    def start(self, job, state):
        start = replace(state.start, command=trainer_command("work", job.id))
        super().start(job, replace(state, start=start))

jobs_home().mkdir(parents=True)
with Lock(jobs_home() / RUNNER_LOCK) as lock:
    assert lock.take()
    print("ready", flush=True)
    while True:
        Here().work()
        time.sleep(0.2)
"""


@pytest.fixture(scope="module", params=PINS)
def python(request, tmp_path_factory):
    """The interpreter of an environment with one version of Gradio."""
    kept = os.environ.get("S4S_TEST_ENVS")
    folder = Path(kept or tmp_path_factory.mktemp("envs")) / f"gradio-{request.param}"
    path = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        packages = [f"gradio=={request.param}", *PINS[request.param], "safetensors", "pillow"]
        subprocess.run([path, "-m", "pip", "install", "--quiet", *packages], check=True)
        (folder / "complete").touch()
    return path


@contextmanager
def queue(home):
    """Work through the queue of a data folder in this interpreter."""
    env = os.environ | {"S4S_HOME": str(home), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", QUEUE], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_job_runs_and_files_come_and_go(python, tmp_path):
    home = tmp_path / "home"
    with queue(home), Panel(home, python) as panel, browsers.opened(panel.url) as page:
        page.train(Budget=2500)
        page.wait_until_done(TRAINING_SECONDS)
        page.reload()
        page.tab("Jobs")
        page.wait_for("document.querySelectorAll('#s4s-job svg').length == 2", 120)
        assert len(page.sources("#s4s-job")) == 1

        page.tab("Solvers")
        page.page.wait_for_selector(".s4s-solver:visible")
        with page.page.expect_download() as download:
            page.page.locator("a.s4s-button:visible").click()
        (kept,) = (home / "solvers").glob("*.safetensors")
        assert Path(download.value.path()).read_bytes() == kept.read_bytes()
        page.accordion("Add a file")
        page.page.set_input_files("input[type=file]", str(SOLVERS["ve"]))
        deadline = time.monotonic() + 120
        while len(list((home / "solvers").iterdir())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert page.faults == []


def test_foreign_requests_are_refused(python, tmp_path):
    with Panel(tmp_path / "home", python) as panel:
        assert panel.request("GET", "/")[0] == 200
        for path in ("/", "/config", "/upload", "/queue/join", "/run/predict"):
            for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
                assert panel.request("POST", path, b"{}", **headers)[0] == 403
        for path in ("/file=/etc/passwd", "/file=../../../../etc/passwd", "/file=README.md"):
            status, text = panel.request("GET", path)
            assert status >= 400 and "root:" not in text
