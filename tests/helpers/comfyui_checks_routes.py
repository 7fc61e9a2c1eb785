"""Checks of the sidebar's routes and of the trainer panel's process."""

import importlib.util
import json
import os
import sys
import threading
from pathlib import Path
from unittest.mock import patch

from comfyui_bench import Skipped, listings, refusal

OWN = {"X-S4S": "1"}
CANCEL, PANEL = "/s4s/jobs/cancel", "/s4s/panel"
MISSING = b'{"id": "20250101-000000-abcdef"}'
ORIGINS = ("http://evil.example", "null", "", "http://[", "http://127.0.0.1", "file://")
NAMES = ("evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "192.168.0.9", "[", "")
FOREIGN = [{}, {"X-S4S": "0"}, {"X-S4S": "1, 1"}, OWN | {"Host": "evil.example"}]
FOREIGN += [OWN | {"Origin": origin} for origin in ORIGINS]
FOREIGN += [OWN | {"Sec-Fetch-Site": site} for site in ("cross-site", "same-site")]
FOREIGN += [OWN | {"Host": name, "Origin": f"http://{name}"} for name in NAMES]
IDS = ["1", '["graph"]', '"graph"', '".."', '"../../home"', '"a\\u0000b"', '"\\ud800"', "NaN"]
IDS += [f'"{"x" * length}"' for length in (9_000, 20_000_000)]
BODIES = [b"", b"{", b"[]", b"null", b"\xff\xfe\xff", b"[" * 9_000, b'{"id":' * 1_500]
BODIES += [b" " * 20_000 + MISSING, *(f'{{"id": {one}}}'.encode() for one in IDS)]
CODED = OWN | {"Content-Encoding": "gzip", "Connection": "close"}
TYPES = ("application/json; charset=nonsense", "text/plain")
PATHS = """
../config.json ..%2F..%2Fetc%2Fpasswd %2Fetc%2Fpasswd ..%5C..%5Csecret.safetensors %FF%FE
demo.safetensors%00 file%3A%2F%2F%2Fetc%2Fpasswd link.safetensors loop.safetensors
folder.safetensors
"""
QUERIES = ["", "file=", *(f"file={path}" for path in [*PATHS.split(), "x" * 4_000])]
STEPS = ("-1", "5.0", "%D9%A5", "1e3", "0", "99", "99999999", "5%00")


def visit_routes(b, visit):
    """Run visit(client, ask) on a server with all routes; ask(method, path) -> status, JSON."""
    if importlib.util.find_spec("aiohttp") is None:
        raise Skipped("aiohttp is not installed")
    import asyncio

    from aiohttp import web
    from aiohttp.test_utils import TestClient, TestServer

    routes = b.part("nodes.routes")
    application = web.Application()
    for (method, path), handler in routes.ROUTES.items():
        application.router.add_route(method, path, routes.answering(handler))

    async def run():
        async with TestClient(TestServer(application)) as client:

            async def ask(method, path, **more):
                async with client.request(method, path, **more) as answer:
                    return answer.status, await answer.json()

            await visit(client, ask)

    asyncio.run(run())


def check_routes_that_read(b):
    async def visit(_, ask):
        status, found = await ask("GET", "/s4s/solvers")
        assert status == 200 and "demo.safetensors" in [s["file"] for s in found["solvers"]]
        assert all({"file", "error", "thumbnail"} <= set(entry) for entry in found["solvers"])
        for path in ("table", "thumbnail"):
            with listings(b) as threads:
                await ask("GET", f"/s4s/{path}?file=none.safetensors&nfe=5")
            assert len(threads) == 1, path
            assert threads[0] is not threading.main_thread(), "blocks the host's page"
        status, found = await ask("GET", "/s4s/table?file=demo.safetensors&nfe=5")
        assert status == 200 and len(found["call_sigmas"]) == 5
        assert await ask("GET", "/s4s/jobs") == (200, {"jobs": []})
        status, found = await ask("GET", "/s4s/panel")
        assert (status, found["url"], type(found["ready"])) == (200, None, bool)

    visit_routes(b, visit)


def check_a_training_in_the_graph_is_listed_and_cancelled(b):
    import comfy.model_management as management

    training, view = b.part("nodes.training"), b.part("s4s_core.app.jobs").JobView

    async def visit(_, ask):
        _, found = await ask("GET", "/s4s/jobs")
        assert found["jobs"][0]["id"] == "graph" and len(found["jobs"][0]) == 14
        assert (await ask("POST", CANCEL, json={"id": "graph"}, headers=OWN))[0] == 200

    running = view("graph", "name", "model", [5], "running", progress=0.5)
    with patch.object(training, "_running", running):
        visit_routes(b, visit)
    try:
        management.throw_exception_if_processing_interrupted()
        raise AssertionError("nothing was cancelled")
    except management.InterruptProcessingException:
        management.interrupt_current_processing(False)


def attacks():
    """Requests (method, path, headers, body) of which none may work."""
    found = [("POST", path, given, b"{}") for path in (CANCEL, PANEL) for given in FOREIGN]
    found += [("POST", CANCEL, OWN, body) for body in BODIES]
    found += [("POST", CANCEL, OWN | {"Content-Type": kind}, MISSING) for kind in TYPES]
    found += [("POST", path, CODED, MISSING) for path in (CANCEL, PANEL)]
    found += [("POST", PANEL, OWN, body) for body in (b"", b"[]", b"[" * 9_000, b" " * 20_000)]
    asked = [f"{what}?{query}&nfe=5" for query in QUERIES for what in ("table", "thumbnail")]
    found += [("GET", f"/s4s/{one}", {}, None) for one in asked]
    found += [("GET", f"/s4s/table?file=demo.safetensors&nfe={n}", {}, None) for n in STEPS]
    found += [(method, CANCEL, OWN, MISSING) for method in ("GET", "PUT", "DELETE", "PATCH")]
    found += [("GET", f"/s4s/{path}", {}, None) for path in ("..", "../etc/passwd", "panel/x")]
    return found + [("GET", "/s4s/thumbnail?file=odd.safetensors", {}, None)]


def state_of(b):
    """What an attack must not change: files, processes, what is running."""
    folders = b.part("s4s_core.app.folders")
    files = {
        str(path): path.read_bytes()
        for home in (folders.data_home(), b.base / "models")
        for path in home.rglob("*")
        if path.is_file()
    }
    threads = Path("/proc").glob("self/task/*/children")
    processes = {pid for path in threads for pid in path.read_text().split()}
    return files, processes, b.part("nodes.panel").PANEL.url(), b.part("nodes.training").running()


def hostile_folder(b):
    """Put links, a folder and a broken thumbnail among the solver files; return the paths."""
    table, home = b.part("s4s_core.table"), b.base / "models" / "s4s_solvers"
    home.mkdir(parents=True, exist_ok=True)
    pack, odd = b.solver(), home / "odd.safetensors"
    pack = table.SolverPack(pack.tables, {"thumbnail": "data:image/png;base64,A"})
    b.part("s4s_core").save_solver(odd, pack)
    secret, link, loop = b.base / "secret", home / "link.safetensors", home / "loop.safetensors"
    secret.write_text("root:secret")
    link.symlink_to(secret)
    loop.symlink_to(loop)
    (home / "folder.safetensors").mkdir()
    return [odd, link, loop, home / "folder.safetensors"]


def check_attacks_on_the_routes_change_nothing(b):
    """Every attack is answered with 4xx and a message."""

    async def visit(client, ask):
        for method, path, headers, body in attacks():
            one = (method, path[:80], headers, (body or b"")[:40])
            async with client.request(method, path, headers=headers, data=body) as answer:
                text = await answer.text()
            assert 400 <= answer.status < 500, (one, answer.status, text)
            assert "root:" not in text and "Traceback" not in text, (one, text)
            if answer.content_type == "application/json":
                assert json.loads(text)["error"].endswith("."), one
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
        status, found = await ask("GET", "/s4s/solvers")
        assert status == 200 and "root:" not in str(found)

    made = hostile_folder(b)
    try:
        before = state_of(b)
        visit_routes(b, visit)
        assert state_of(b) == before
    finally:
        for path in made:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def check_only_the_hosts_own_page_may_change_things(b):
    """By default the host has only this machine's names; with --listen, those too."""
    routes = b.part("nodes.routes")
    local, named, anyone = "127.0.0.1", "127.0.0.1,192.168.0.9", "0.0.0.0,::"
    own = [(host, local) for host in ["localhost:8188", "127.0.0.1:80", "[::1]:8188", "LOCALHOST"]]
    own += [("127.0.0.1", local), ("192.168.0.9:8188", named), ("mine.example", anyone)]
    foreign = [(host, local) for host in ["evil.example", "localhost.evil.example", "["]]
    foreign += [("192.168.0.9:8188", local), ("", local), ("mine.example", named), ("", anyone)]
    for host, listen in own + foreign:
        headers = {"X-S4S": "1", "Host": host, "Origin": f"http://{host}".lower()}
        with patch.object(routes.args, "listen", listen):
            assert routes.is_from_own_page(headers) == ((host, listen) in own), (host, listen)


def check_the_panel_asks_comfyui_on_this_machine_only(b):
    panel = b.part("nodes.panel")
    for listen, key, found in (
        ("127.0.0.1", None, "http://127.0.0.1:9"),
        ("0.0.0.0,::", None, "http://127.0.0.1:9"),
        ("192.168.0.9", None, None),
        ("127.0.0.1", "key.pem", None),
    ):
        with patch.multiple(panel.args, listen=listen, tls_keyfile=key, port=9):
            assert panel.own_address() == found


def check_the_panel_starts_once_and_stops(b):
    panel = b.part("nodes.panel")

    def running(code):
        return panel.Panel([sys.executable, "-c", f"import os, sys, time; {code}"])

    line = "print('noise'); print('S4S panel: http://127.0.0.1:9/', flush=True); "
    one = running(line + "print(os.environ['S4S_SOLVERS'], flush=True); time.sleep(600)")
    assert one.url() is None
    try:
        assert one.start() == one.start() == one.url() == "http://127.0.0.1:9/"
    finally:
        one.stop()
    assert one.url() is None
    address = running("sys.exit('At ' + os.environ['S4S_COMFYUI'] + '.')")
    refusal(address.start, f"At {panel.own_address()}.")
    refusal(running("sys.exit(f'Given {sys.argv[1:]}.')").start, "Given [].")
    given = running("sys.exit(f'Given {sys.argv[1:]}.')")
    refusal(lambda: given.start(True), "['--install']")
    usual = panel.Panel()._argv
    assert usual[-4:] == ["panel", "--no-browser", "--follow", str(os.getpid())]
