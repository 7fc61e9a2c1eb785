"""The panel that ComfyUI opens: ComfyUI is asked to unload its models before others load theirs."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from trainer.panel import comfyui


@pytest.fixture
def host():
    """A server that notes what it is asked for: (its address, the requests)."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, self.headers["Content-Type"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_comfyui_is_asked_to_free_its_memory(host, monkeypatch):
    address, asked = host
    monkeypatch.setenv(comfyui.ADDRESS, address)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    comfyui.hooks().before_training()
    assert asked == [
        ("/free", "application/json", {"unload_models": True, "free_memory": True}),
    ]


def test_a_comfyui_that_is_gone_keeps_nobody_from_training():
    comfyui.Hooks("http://127.0.0.1:1").before_training()


@pytest.mark.parametrize("address", [None, ""])
def test_without_comfyui_there_is_nothing_to_ask(address, monkeypatch):
    monkeypatch.delenv(comfyui.ADDRESS, raising=False)
    if address is not None:
        monkeypatch.setenv(comfyui.ADDRESS, address)
    assert comfyui.hooks() is None


def test_the_panels_own_page_has_the_hooks(monkeypatch):
    pytest.importorskip("gradio")
    from trainer.panel import compat, server

    built = []
    monkeypatch.setenv(comfyui.ADDRESS, "http://127.0.0.1:9")
    monkeypatch.setattr("trainer.panel.build", built.append)
    monkeypatch.setattr(compat, "mount", lambda app, page, size: app)
    server.application()
    assert [hooks.address for hooks in built] == ["http://127.0.0.1:9"]
