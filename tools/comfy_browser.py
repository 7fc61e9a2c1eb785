"""Run a real ComfyUI with this checkout, and show it in headless Chromium.

The browser tests and the pictures in the documentation use this. It needs COMFYUI_PATH (a checkout
of ComfyUI whose requirements, including the front end package, are installed for this Python),
playwright, and Chromium (set CHROMIUM if it is not in PATH).
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT = 300
SETTINGS = {"Comfy.TutorialCompleted": True, "Comfy.Locale": "en", "Comfy.ColorPalette": "dark"}


def missing() -> str | None:
    """Return what is missing, or None if everything is installed."""
    if not (comfyui_path() / "main.py").is_file():
        return "COMFYUI_PATH is not a ComfyUI checkout"
    if chromium() is None:
        return "Chromium is not installed"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return None


def comfyui_path() -> Path:
    return Path(os.environ.get("COMFYUI_PATH") or "no-comfyui")


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url: str) -> Any:
    """GET a URL and return its JSON."""
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        return json.load(answer)


def post(url: str, body: Any) -> Any:
    """POST JSON and return the JSON of the answer, or None if it is empty."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def run_prompt(url: str, prompt: dict[str, Any], timeout: float = TIMEOUT) -> dict[str, Any]:
    """Queue a prompt, wait until it ends and return its entry in the history."""
    name = post(f"{url}/prompt", {"prompt": prompt})["prompt_id"]
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        entry = get(f"{url}/history/{name}").get(name)
        if entry:
            return entry
        time.sleep(0.2)
    raise TimeoutError(f"The prompt did not finish within {timeout} s.")


@contextlib.contextmanager
def comfyui(folder: Path) -> Iterator[str]:
    """Run ComfyUI with all models, jobs and settings in `folder`; yields its URL."""
    (folder / "custom_nodes").mkdir(parents=True)
    (folder / "custom_nodes" / "s4s").symlink_to(ROOT, target_is_directory=True)
    user = folder / "user" / "default"
    user.mkdir(parents=True)
    (user / "comfy.settings.json").write_text(json.dumps(SETTINGS), encoding="utf-8")
    port = free_port()
    command = [sys.executable, "main.py", "--cpu", "--port", str(port), "--base-directory"]
    command += [str(folder), "--disable-api-nodes", "--database-url", f"sqlite:///{folder}/db"]
    environment = os.environ | {"S4S_HOME": str(folder / "s4s"), "OMP_NUM_THREADS": "1"}
    url = f"http://127.0.0.1:{port}"
    with open(folder / "log.txt", "wb") as log:
        process = subprocess.Popen(
            command, cwd=comfyui_path(), env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _wait_for(url, process, folder / "log.txt")
            yield url
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until ComfyUI answers; raise RuntimeError with the end of its log if it does not."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end and process.poll() is None:
        try:
            get(f"{url}/system_stats")
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise RuntimeError(f"ComfyUI did not start:\n{log.read_text('utf-8', 'replace')[-2000:]}")


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Run headless Chromium; yields playwright's Browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield opened
        opened.close()


def set_up(url: str, **settings: Any) -> None:
    """Change settings of ComfyUI's page, such as {"Comfy.ColorPalette": "light"}."""
    post(f"{url}/settings", SETTINGS | settings)


@contextlib.contextmanager
def page(
    opened: Any, url: str, width: int = 1400, height: int = 900, scale: float = 1
) -> Iterator[Any]:
    """Open ComfyUI's page and wait until it is ready; its `errors` are exceptions of scripts."""
    context = opened.new_context(
        viewport={"width": width, "height": height}, device_scale_factor=scale
    )
    shown = context.new_page()
    shown.set_default_timeout(TIMEOUT * 1000)
    shown.errors = []
    shown.on("pageerror", lambda error: shown.errors.append(str(error)))
    shown.goto(url)
    shown.wait_for_selector(".s4s-tab-button")
    shown.wait_for_function("window.app?.graph && window.app.canvas?.graph")
    yield shown
    context.close()


def open_tab(shown: Any) -> None:
    """Open the sidebar tab and wait for its cards."""
    shown.click(".s4s-tab-button")
    shown.wait_for_selector(".s4s-sidebar .s4s-card")


def open_workflow(shown: Any, workflow: dict[str, Any]) -> None:
    """Load a workflow into the page."""
    shown.evaluate("async (graph) => { await window.app.loadGraphData(graph); }", workflow)
