"""A real ComfyUI process for the tests, used over HTTP."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 600


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A headless ComfyUI on the CPU; its base folder holds only this pack, and `packs`."""

    def __init__(self, comfyui, base, *options, packs=()):
        self.base, self.log = Path(base), Path(base) / "server.log"
        nodes = self.base / "custom_nodes"
        nodes.mkdir(parents=True)
        for name, folder in {"s4s": ROOT, **{Path(p).name: Path(p) for p in packs}}.items():
            (nodes / name).symlink_to(folder.resolve(), target_is_directory=True)
        self.command = [sys.executable, str(Path(comfyui) / "main.py"), "--cpu", *options]
        self.command += ["--base-directory", str(base), "--disable-auto-launch"]
        database = self.base / "comfyui.db"
        self.command += ["--database-url", f"sqlite:///{database}"]
        self.environment = os.environ | {
            "S4S_HOME": str(self.base / "home"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": "",
            "PYTHONUNBUFFERED": "1",
        }
        self.environment.pop("S4S_SOLVERS", None)
        self.start()

    def start(self):
        """Start, also after `stop`; try another port if it was taken meanwhile."""
        for _ in range(3):
            self.port = _free_port()
            with open(self.log, "ab") as log:
                self.process = subprocess.Popen(
                    [*self.command, "--port", str(self.port)],
                    env=self.environment,
                    cwd=self.base,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            if self._answers():
                return
            self.stop()
        raise RuntimeError(self.log.read_text(errors="replace")[-4000:])

    def _answers(self):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            try:
                self.get("/system_stats")
                return True
            except OSError:
                time.sleep(0.3)
        return False

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(30)

    # HTTP

    def ask(self, path, data=None, headers=None, method=None):
        """Return (status, body) of a request, whatever the status."""
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", body, headers or {}, method=method
        )
        if body is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def get(self, path):
        """Return the JSON of a page that must exist."""
        status, body = self.ask(path)
        assert status == 200, (path, status, body[:500])
        return json.loads(body)

    # Prompts

    def queue(self, graph):
        """Queue a prompt and return its id; fail with the reason if it is refused."""
        status, body = self.ask("/prompt", {"prompt": graph, "client_id": "tests"})
        assert status == 200, body.decode()
        return json.loads(body)["prompt_id"]

    def wait(self, prompt):
        """Wait for a prompt to end and return its history."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = self.get(f"/history/{prompt}")
            if prompt in found and found[prompt].get("status"):
                return found[prompt]
            assert self.process.poll() is None, "the server ended"
            time.sleep(0.1)
        raise AssertionError("the prompt did not end")

    def run(self, graph):
        """Run a prompt that must succeed; return its outputs by node."""
        ended = self.wait(self.queue(graph))
        assert ended["status"]["status_str"] == "success", ended["status"]["messages"]
        return ended["outputs"]

    def fault(self, graph):
        """Run a prompt that must fail; return the message."""
        ended = self.wait(self.queue(graph))
        messages = dict(ended["status"]["messages"])
        assert "execution_error" in messages, messages
        return messages["execution_error"]["exception_message"].strip()
