"""The panel's server: its port, environment and end, and the ComfyUI that starts it."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from panels import Panel

from s4s_core.app import processes
from s4s_core.app.folders import jobs_home, solver_folders
from s4s_core.app.processes import is_alive
from s4s_core.errors import S4SError
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


def test_the_environment_cannot_open_the_panel(monkeypatch, tmp_path):
    for name in ("GRADIO_SHARE", "GRADIO_ALLOWED_PATHS", "GRADIO_SERVER_NAME", "GRADIO_ROOT_PATH"):
        monkeypatch.setenv(name, "evil")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(processes, "DETACHED_IN", None)
    monkeypatch.chdir(tmp_path)
    server.prepare_environment(tmp_path)
    left = {name: value for name, value in os.environ.items() if name.startswith("GRADIO_")}
    assert left == {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_TEMP_DIR": str(tmp_path)}


def test_jobs_outlive_the_panels_own_folder(monkeypatch, tmp_path):
    """torch does not load in a deleted working folder, and a process in it keeps it alive."""
    own, start = tmp_path / "own", tmp_path / "start"
    own.mkdir(), start.mkdir()
    monkeypatch.chdir(start)
    named = {"S4S_HOME": "h", "S4S_SOLVERS": os.pathsep.join("ab")}
    monkeypatch.setattr(os, "environ", dict(os.environ) | named)
    monkeypatch.setattr(processes, "DETACHED_IN", None)
    server.prepare_environment(own)
    assert jobs_home() == start / "h" / "jobs"
    assert solver_folders() == [start / "a", start / "b"]
    command = [sys.executable, "-c", "import os; print(os.getcwd())"]
    assert processes.start_detached(command, tmp_path / "log").wait(120) == 0
    assert Path((tmp_path / "log").read_text().strip()) == start


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


# Uploads


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


def test_only_the_newest_uploads_are_kept(tmp_path):
    (tmp_path / uploads.LOCK).write_text("1")
    for n in range(5):
        (tmp_path / str(n)).mkdir()
        (tmp_path / str(n) / "solver").write_bytes(bytes(100))
        os.utime(tmp_path / str(n) / "solver", (n, n))
    uploads.trim(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4", uploads.LOCK]


def test_every_upload_makes_room_for_itself(monkeypatch, tmp_path):
    trimmed = []
    monkeypatch.setattr(server, "trim", trimmed.append)
    app = server.application(tmp_path)
    headers = [(b"host", b"localhost")]

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        pass

    for path in ("/config", "/gradio_api/upload"):
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
        scope |= {"headers": headers, "query_string": b"", "root_path": "", "scheme": "http"}
        asyncio.run(
            app(scope | {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)}, receive, send)
        )
    assert trimmed == [tmp_path]


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
