"""Panels as processes, and requests to them, for the panel's tests."""

import http.client
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READY_SECONDS = 300
REFUSED = 403


class Panel:
    """`python -m trainer panel` on a free port with a home of its own; use it in a with block."""

    def __init__(self, home, python=sys.executable, root=ROOT, **env):
        self.home = Path(home)
        self.command = [str(python), "-m", "trainer", "panel", "--port", "0", "--no-browser"]
        self.root = root
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("S4S_", "GRADIO_"))}
        self.env = keep | {"S4S_HOME": str(home), "OMP_NUM_THREADS": "1"} | env
        self.lines, self.process, self.url = [], None, None

    def start(self, *arguments):
        self.lines, self.url = [], None
        self.process = subprocess.Popen(
            [*self.command, *arguments],
            cwd=self.root,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        deadline = time.monotonic() + READY_SECONDS
        while self.url is None:
            text = "".join(self.lines)
            assert self.process.poll() is None, f"the panel ended: {text}"
            assert time.monotonic() < deadline, f"the panel is not ready: {text}"
            time.sleep(0.05)
        return self

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("S4S panel: "):
                self.url = line.split()[-1]

    @property
    def address(self):
        return self.url.split("/")[2]

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()

    def request(self, method, path, body=None, **headers):
        """(status, text) of a request; headers as keywords, with _ for -.

        A server that refuses may close the connection while the body is still being sent: a reset
        or broken connection is that refusal.
        """
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named.setdefault("Host", self.address)
        host, port = self.address.split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return response.status, response.read(1 << 20).decode("utf-8", "replace")
        except (ConnectionResetError, BrokenPipeError, ConnectionAbortedError):
            return REFUSED, ""
        except http.client.RemoteDisconnected:
            return REFUSED, ""
        finally:
            connection.close()


def files_of(folder):
    """Every file below a folder with its contents."""
    return {str(p): p.read_bytes() for p in sorted(Path(folder).rglob("*")) if p.is_file()}
