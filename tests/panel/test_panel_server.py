"""The panel's server: its port, environment and end, and the ComfyUI that starts it."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from panels import EDGE, FORM, Panel, form

from s4s_core.app import processes
from s4s_core.app.folders import jobs_home, solver_folders
from s4s_core.app.processes import is_alive
from s4s_core.errors import S4SError
from s4s_core.lock import Lock
from trainer.panel import compat, server, uploads


def test_a_port_in_use_is_an_error_only_if_it_was_asked_for(monkeypatch):
    with server.open_socket(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(S4SError, match=f"port {port}"):
            server.open_socket(port)
        monkeypatch.setattr(server, "PORT", port)
        with server.open_socket() as other:
            assert other.getsockname()[0] == "127.0.0.1" and other.getsockname()[1] != port
    for impossible in (-1, 70_000):
        with pytest.raises(S4SError, match="Choose another"):
            server.open_socket(impossible)


@pytest.fixture
def process(monkeypatch):
    """Whatever prepare_environment changes in this process, restored after the test."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(processes, "DETACHED_IN", None)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(Path.cwd())
    return monkeypatch


def test_the_environment_cannot_open_the_panel(process, tmp_path):
    for name in ("GRADIO_SHARE", "GRADIO_ALLOWED_PATHS", "GRADIO_SERVER_NAME", "GRADIO_ROOT_PATH"):
        os.environ[name] = "evil"
    server.prepare_environment(tmp_path)
    left = {name: value for name, value in os.environ.items() if name.startswith("GRADIO_")}
    assert left == {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_TEMP_DIR": str(tmp_path)}


def test_jobs_outlive_the_panels_own_folder(process, tmp_path):
    """torch does not load in a deleted working folder, and a process in it keeps it alive. What
    Gradio writes goes there, but not what a job writes."""
    own, start = tmp_path / "own", tmp_path / "start"
    own.mkdir(), start.mkdir()
    os.chdir(start)
    os.environ |= {"S4S_HOME": "h", "S4S_SOLVERS": os.pathsep.join("ab")}
    usual = tempfile.gettempdir()
    server.prepare_environment(own)
    assert jobs_home() == start / "h" / "jobs"
    assert solver_folders() == [start / "a", start / "b"]
    assert tempfile.gettempdir() == str(own)
    code = "import os, tempfile; print(os.getcwd(), tempfile.gettempdir(), sep='\\n')"
    command = [sys.executable, "-c", code]
    assert processes.start_detached(command, tmp_path / "log").wait(120) == 0
    assert (tmp_path / "log").read_text().splitlines() == [str(start), usual]


def test_the_server_stops_with_the_process_that_it_follows():
    class Server:
        should_exit = False

    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert is_alive(process.pid) and is_alive(os.getpid())
    follower = threading.Thread(target=server._stop_with, args=[process.pid, Server], daemon=True)
    follower.start()
    process.kill()
    process.communicate()
    follower.join(60)
    assert Server.should_exit and not is_alive(process.pid)


@pytest.mark.parametrize("follow", [0, -1, 10**30])
def test_only_the_number_of_a_process_can_be_followed(monkeypatch, follow):
    monkeypatch.setattr(server, "open_socket", lambda port: pytest.fail("the panel starts"))
    with pytest.raises(S4SError, match="--follow must be the number of a process"):
        server.serve(0, follow)


# The panel's folder


def test_a_panel_removes_the_uploads_of_dead_ones_only(home):
    with uploads.own_folder() as alive:
        (alive / "x").mkdir()
        (alive / "x" / "solver").write_bytes(b"new")
        for name in ("s4s-panel-killed", "s4s-panel-killed-before-its-lock", "other"):
            (uploads.uploads_home() / name / "y").mkdir(parents=True)
        (uploads.uploads_home() / "s4s-panel-killed" / uploads.LOCK).write_text("1")
        with uploads.own_folder() as second:
            left = {path.name for path in uploads.uploads_home().iterdir()}
            assert left == {alive.name, second.name, uploads.LOCK, "other"}
    assert not alive.exists() and not second.exists()


def test_a_killed_panel_leaves_nothing_that_the_next_one_does_not_remove(tmp_path):
    panel = Panel(tmp_path)
    with panel:
        assert panel.upload("a.safetensors", b"A" * 500_000)[0] == 200
    (left,) = (tmp_path / "uploads").glob("s4s-panel-*")
    assert any(path.stat().st_size == 500_000 for path in left.rglob("*"))
    with panel:
        (new,) = (tmp_path / "uploads").glob("s4s-panel-*")
        assert new != left


def test_nobody_sweeps_while_another_panel_may_be_starting(home, monkeypatch):
    """Its lock may not be taken yet. A panel that waits in vain starts all the same."""
    monkeypatch.setattr(uploads, "_PATIENCE", 0)
    starting = uploads.uploads_home() / "s4s-panel-starting"
    starting.mkdir(parents=True)
    with Lock(uploads.uploads_home() / uploads.LOCK) as door:
        assert door.take()
        with uploads.own_folder() as own:
            assert own.exists() and starting.exists()


def test_only_the_newest_files_are_kept_wherever_they_are(tmp_path):
    names = ["0/old", "tmp1", "2/old", "2/x/new", "tmp4", uploads.LOCK]
    for n, path in enumerate(tmp_path / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (n, n))
    os.utime(tmp_path / uploads.LOCK, (0, 0))
    uploads.trim(tmp_path, 350)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert left == {"2", "2/x", "2/x/new", "tmp4", uploads.LOCK}


def break_off(panel):
    """Send half a file, and close the connection once the panel has written it."""
    head, _, _ = form("a", b"A" * 1000).partition(b"\r\n--" + EDGE.encode() + b"--")
    host, port = panel.address.split(":")
    lines = [f"POST /gradio_api/upload HTTP/1.1\r\nHost: {panel.address}"]
    lines += [f"Content-Type: {FORM}\r\nContent-Length: 5000\r\n\r\n"]
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall("\r\n".join(lines).encode() + head)
        deadline = time.monotonic() + 120
        while not list((panel.home / "uploads").glob("*/tmp*")):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def leave_files(panel):
    """Make Gradio write in its own folder and in the one for temporary files."""
    video = form("a.mp4", b"A" * 1000).replace(b'"files"', b'"video"')
    assert panel.upload("a.safetensors", b"A" * 1000)[0] == 200
    kind = {"Content_Type": FORM}
    assert panel.request("POST", "/gradio_api/process_recording", video, **kind)[0] == 200
    break_off(panel)


@pytest.fixture
def heard(request):
    """Let children hear a signal: one that is ignored, as under nohup, stays so in a child; one
    that has a handler does not."""
    number = getattr(signal, request.param)
    before = signal.signal(number, lambda *_: None)
    yield number
    signal.signal(number, before)


@pytest.mark.skipif(os.name == "nt", reason="Windows ends a process without asking it")
@pytest.mark.parametrize("heard", ["SIGTERM", "SIGHUP"], indirect=True)
def test_a_panel_that_is_told_to_end_leaves_nothing_anywhere(tmp_path, heard):
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    temporary.mkdir()
    with Panel(home, TMPDIR=str(temporary)) as panel:
        leave_files(panel)
        written = {path.suffix for path in (home / "uploads").rglob("*") if path.is_file()}
        assert written >= {".safetensors", ""} and list(temporary.iterdir()) == []
        said = panel.end(heard)
    assert panel.process.returncode == -signal.SIGTERM and "ClientDisconnect" not in said
    assert [path.name for path in (home / "uploads").iterdir()] == [uploads.LOCK]
    assert list(temporary.iterdir()) == []


# ComfyUI


def test_comfyui_is_asked_to_free_its_memory(monkeypatch):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        monkeypatch.setenv(server.COMFYUI_ADDRESS, f"http://127.0.0.1:{http.server_port}")
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        server.comfyui_host().before_training()
        http.shutdown()
    assert asked == [("/free", "application/json", {"unload_models": True, "free_memory": True})]
    server.ComfyUIHost("http://127.0.0.1:1").before_training()  # gone: training starts anyway


@pytest.mark.parametrize("address", [None, "", "http://127.0.0.1:9"])
def test_the_page_knows_the_comfyui_that_started_the_panel(address, monkeypatch):
    built = []
    monkeypatch.delenv(server.COMFYUI_ADDRESS, raising=False)
    if address is not None:
        monkeypatch.setenv(server.COMFYUI_ADDRESS, address)
    monkeypatch.setattr("trainer.panel.build", lambda host, run: built.append(host))
    monkeypatch.setattr(compat, "mount", lambda app, page, size: app)
    server.application(Path())
    assert [host and host.address for host in built] == [address or None]
