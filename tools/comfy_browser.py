"""A real ComfyUI with this checkout in it, and a headless Chromium that shows it: for the browser
tests and for the pictures in the documentation.

Needs COMFYUI_PATH (a checkout of ComfyUI whose requirements the running interpreter has, with its
front end package), playwright, and a chromium (CHROMIUM names one that is not in PATH).
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 300
SETTINGS = {"Comfy.TutorialCompleted": True, "Comfy.Locale": "en", "Comfy.ColorPalette": "dark"}


def missing():
    """What is not there, in a sentence; None if all is."""
    if not (comfyui_path() / "main.py").is_file():
        return "COMFYUI_PATH names no checkout of ComfyUI"
    if chromium() is None:
        return "there is no chromium"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return None


def comfyui_path():
    return Path(os.environ.get("COMFYUI_PATH") or "no-comfyui")


def chromium():
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url):
    """The JSON at an address."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return json.load(answer)


def post(url, body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def run_prompt(url, prompt, patience=PATIENCE):
    """Queue a prompt, wait for its end and return what the history says of it."""
    name = post(f"{url}/prompt", {"prompt": prompt})["prompt_id"]
    end = time.monotonic() + patience
    while time.monotonic() < end:
        found = get(f"{url}/history/{name}").get(name)
        if found:
            return found
        time.sleep(0.2)
    raise TimeoutError(f"the prompt did not end within {patience} s")


@contextlib.contextmanager
def comfyui(folder):
    """The address of a ComfyUI whose models, jobs and settings are all in `folder`."""
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


def _wait_for(url, process, log):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            get(f"{url}/system_stats")
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise RuntimeError(f"ComfyUI did not start:\n{log.read_text('utf-8', 'replace')[-2000:]}")


@contextlib.contextmanager
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield opened
        opened.close()


def set_up(url, **settings):
    """Change settings of ComfyUI's page, such as {"Comfy.ColorPalette": "light"}."""
    post(f"{url}/settings", SETTINGS | settings)


@contextlib.contextmanager
def page(opened, url, width=1400, height=900, scale=1):
    """ComfyUI's page, ready; `errors` on it collects what scripts threw."""
    context = opened.new_context(
        viewport={"width": width, "height": height}, device_scale_factor=scale
    )
    shown = context.new_page()
    shown.set_default_timeout(PATIENCE * 1000)
    shown.errors = []
    shown.on("pageerror", lambda error: shown.errors.append(str(error)))
    shown.goto(url)
    shown.wait_for_selector(".s4s-tab-button")
    shown.wait_for_function("window.app?.graph && window.app.canvas?.graph")
    yield shown
    context.close()


def open_tab(shown):
    """Open the sidebar tab and wait for its cards."""
    shown.click(".s4s-tab-button")
    shown.wait_for_selector(".s4s-sidebar .s4s-card")


def open_workflow(shown, workflow):
    """Load a workflow into the page."""
    shown.evaluate("async (graph) => { await window.app.loadGraphData(graph); }", workflow)
