"""Panels as processes, and requests to them."""

import http.client
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 300
REFUSED = 403
EDGE = "x" * 20
FORM = f"multipart/form-data; boundary={EDGE}"


class Panel:
    """`python -m trainer panel` on a free port with its own data folder; a context manager."""

    def __init__(self, home, python=sys.executable, root=ROOT, **env):
        self.home = Path(home)
        self.command = [str(python), "-m", "trainer", "panel", "--port", "0", "--no-browser"]
        self.root = root
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("S4S_", "GRADIO_"))}
        self.env = keep | {"S4S_HOME": str(home), "OMP_NUM_THREADS": "1"} | env
        self.lines, self.process, self.url, self.reader = [], None, None, None

    def start(self, *arguments):
        self.lines = []
        options = {"cwd": self.root, "env": self.env, "text": True, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(
            [*self.command, *arguments], stderr=subprocess.STDOUT, **options
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.url = self.wait_for_line("S4S panel: ").split()[-1]
        return self

    @contextmanager
    def lines_meanwhile(self):
        """Collect what the panel prints in the block: an odd request before it and one after it
        print a line that tells where it begins and ends."""
        lines, before = [], self._mark()
        yield lines
        lines += self.lines[before : self._mark() - 1]

    def _mark(self):
        number = -1 - secrets.randbits(30)
        call = json.dumps({"data": [], "fn_index": number}).encode()
        self.request("POST", "/gradio_api/run/predict", call, Content_Type="application/json")
        line = self.wait_for_line(f"error: POST /gradio_api/run/predict: KeyError({number})")
        return self.lines.index(f"{line}\n") + 1

    def wait_for_line(self, start):
        """Return the first line that starts with a text, once it has been printed."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            text = "".join(self.lines)
            for line in text.splitlines():
                if line.startswith(start):
                    return line
            assert self.process.poll() is None, f"the panel ended: {text}"
            assert time.monotonic() < deadline, f"the panel has not printed '{start}': {text}"
            time.sleep(0.05)

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def address(self):
        return self.url.split("/")[2]

    def end(self, signal):
        """Send a signal, wait for the end, and return all that was printed after the address."""
        self.process.send_signal(signal)
        self.process.wait(120)
        self.reader.join(120)
        return "".join(self.lines).partition(self.url)[2].strip()

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
        """Send a request and return (status, text); headers are keywords, with _ for -.

        A server may refuse by closing the connection while the body is still being sent, so a
        broken connection counts as a refusal.
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
        finally:
            connection.close()

    def config(self):
        """Return the page's components and their events."""
        return json.loads(self.request("GET", "/config")[1])

    def join(self, number, data):
        """Trigger an event by its number, through the queue; return (success, last message)."""
        session = secrets.token_hex(8)
        call = {"data": data, "fn_index": number, "session_hash": session}
        body, kind = json.dumps(call).encode(), "application/json"
        status, text = self.request("POST", "/gradio_api/queue/join", body, Content_Type=kind)
        if status != 200:
            return False, text
        _, text = self.request("GET", f"/gradio_api/queue/data?session_hash={session}")
        lines = (line.removeprefix("data: ") for line in text.splitlines())
        messages = [json.loads(line) for line in lines if line]
        (last,) = (message for message in messages if message["msg"] == "process_completed")
        return last["success"], json.dumps(last)

    def upload(self, name, data):
        """Upload bytes under a file name, as a browser does; return (status, text)."""
        return self.request("POST", "/gradio_api/upload", form(name, data), Content_Type=FORM)


def form(name, data):
    """Return the body, of type FORM, that uploads bytes under a file name."""
    head = f'--{EDGE}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n'
    kind = "Content-Type: application/octet-stream\r\n\r\n"
    return (head + kind).encode() + data + f"\r\n--{EDGE}--\r\n".encode()


def event_of(config, label, event):
    """Return the event, a dict with its number `id`, of the component with a label."""
    (number,) = (c["id"] for c in config["components"] if c["props"].get("label") == label)
    return next(d for d in config["dependencies"] if [number, event] in map(list, d["targets"]))


def files_of(home):
    """Return the contents of every file below a data folder, without the uploads of panels."""
    files = (path for path in sorted(Path(home).rglob("*")) if path.is_file())
    uploads = Path(home) / "uploads"
    return {str(path): path.read_bytes() for path in files if uploads not in path.parents}
