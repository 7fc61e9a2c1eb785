"""Checks of the sidebar's routes and of the trainer panel's process."""

import importlib.util
import json
import os
import sys
import threading
from pathlib import Path

from comfyui_bench import Skipped, listings, refusal

OWN = {"X-S4S": "1"}
CANCEL, PANEL = "/s4s/jobs/cancel", "/s4s/panel"
EVIL = "http://evil.example"
MISSING = b'{"id": "20250101-000000-abcdef"}'
FOREIGN = [
    {},
    {"X-S4S": "0"},
    {"X-S4S": "1, 1"},
    OWN | {"Origin": EVIL},
    OWN | {"Origin": "null"},
    OWN | {"Origin": ""},
    OWN | {"Origin": "http://["},
    OWN | {"Origin": "http://127.0.0.1"},
    OWN | {"Origin": "file://"},
    OWN | {"Sec-Fetch-Site": "cross-site"},
    OWN | {"Sec-Fetch-Site": "same-site"},
    OWN | {"Host": "evil.example"},
    OWN | {"Host": "evil.example", "Origin": EVIL},
    OWN | {"Host": "127.0.0.1.evil.example", "Origin": "http://127.0.0.1.evil.example"},
    OWN | {"Host": "127.0.0.1@evil.example", "Origin": "http://127.0.0.1@evil.example"},
    OWN | {"Host": "192.168.0.9", "Origin": "http://192.168.0.9"},
    OWN | {"Host": "[", "Origin": "http://["},
    OWN | {"Host": "", "Origin": "http://"},
]
BODIES = [
    (b"", {}),
    (b"{", {}),
    (b"[]", {}),
    (b"null", {}),
    (b"\xff\xfe\xff", {}),
    (b"[" * 9_000, {}),
    (b'{"id":' * 1_500, {}),
    (b'{"id": 1}', {}),
    (b'{"id": ["graph"]}', {}),
    (b'{"id": "graph"}', {}),
    (b'{"id": ".."}', {}),
    (b'{"id": "../../home"}', {}),
    (b'{"id": "a\\u0000b"}', {}),
    (b'{"id": "\\ud800"}', {}),
    (b'{"id": "' + b"x" * 9_000 + b'"}', {}),
    (b'{"id": NaN}', {}),
    (MISSING, {"Content-Type": "application/json; charset=nonsense"}),
    (MISSING, {"Content-Type": "text/plain"}),
    (b" " * 20_000 + MISSING, {}),
    (b'{"id": "' + b"x" * 20_000_000 + b'"}', {}),
]
QUERIES = [
    "",
    "file=",
    "file=../config.json",
    "file=..%2F..%2Fetc%2Fpasswd",
    "file=%2Fetc%2Fpasswd",
    "file=..%5C..%5Csecret.safetensors",
    "file=demo.safetensors%00",
    "file=%FF%FE",
    "file=file%3A%2F%2F%2Fetc%2Fpasswd",
    "file=" + "x" * 4_000,
    "file=link.safetensors",
    "file=loop.safetensors",
    "file=folder.safetensors",
]
STEPS = ("-1", "5.0", "%D9%A5", "1e3", "0", "99", "99999999", "5%00")
ODD_BASE64 = "data:image/png;base64,A"


def visit_routes(b, visit):
    """Run visit(client) against a server with all routes."""
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
            await visit(client)

    asyncio.run(run())


def asking(client):
    """ask(method, path) -> (status, JSON)."""

    async def ask(method, path, **more):
        async with client.request(method, path, **more) as answer:
            return answer.status, await answer.json()

    return ask


def check_routes_that_read(b):
    async def visit(client):
        ask = asking(client)
        status, found = await ask("GET", "/s4s/solvers")
        assert status == 200 and "demo.safetensors" in [s["file"] for s in found["solvers"]]
        for entry in found["solvers"]:
            assert {"file", "error", "thumbnail"} <= set(entry)
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

    async def visit(client):
        ask = asking(client)
        _, found = await ask("GET", "/s4s/jobs")
        assert found["jobs"][0]["id"] == "graph" and len(found["jobs"][0]) == 13
        assert (await ask("POST", CANCEL, json={"id": "graph"}, headers=OWN))[0] == 200

    training._running = view("graph", "name", "model", [5], "running", progress=0.5)
    try:
        visit_routes(b, visit)
        try:
            management.throw_exception_if_processing_interrupted()
            raise AssertionError("nothing was cancelled")
        except management.InterruptProcessingException:
            pass
    finally:
        training._running = None
        management.interrupt_current_processing(False)


def attacks():
    """Requests (method, path, headers, body) of which none may work."""
    found = [("POST", path, given, b"{}") for path in (CANCEL, PANEL) for given in FOREIGN]
    found += [("POST", CANCEL, OWN | more, body) for body, more in BODIES]
    found += [("POST", PANEL, OWN, body) for body in (b"", b"[]", b"[" * 9_000, b" " * 20_000)]
    for query in QUERIES:
        found += [
            ("GET", f"/s4s/{what}?{query}&nfe=5", {}, None) for what in ("table", "thumbnail")
        ]
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
    pack = table.SolverPack(pack.tables, {"thumbnail": ODD_BASE64})
    b.part("s4s_core").save_solver(odd, pack)
    secret, link, loop = b.base / "secret", home / "link.safetensors", home / "loop.safetensors"
    secret.write_text("root:secret")
    link.symlink_to(secret)
    loop.symlink_to(loop)
    (home / "folder.safetensors").mkdir()
    return [odd, link, loop, home / "folder.safetensors"]


def check_attacks_on_the_routes_change_nothing(b):
    """Every attack is answered with 4xx and a message."""

    async def visit(client):
        for method, path, headers, body in attacks():
            one = (method, path[:80], headers, (body or b"")[:40])
            async with client.request(method, path, headers=headers, data=body) as answer:
                text = await answer.text()
            assert 400 <= answer.status < 500, (one, answer.status, text)
            assert "root:" not in text and "Traceback" not in text, (one, text)
            if answer.content_type == "application/json":
                assert json.loads(text)["error"].endswith("."), one
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
        async with client.get("/s4s/solvers") as answer:
            text = await answer.text()
            assert answer.status == 200 and "root:" not in text

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

    def own(host, listen):
        routes.args.listen = listen
        headers = {"X-S4S": "1", "Host": host, "Origin": f"http://{host}".lower()}
        return routes.is_from_own_page(headers)

    before = routes.args.listen
    try:
        for host in ("localhost:8188", "127.0.0.1", "127.0.0.1:80", "[::1]:8188", "LOCALHOST"):
            assert own(host, "127.0.0.1"), host
        for host in ("evil.example", "localhost.evil.example", "192.168.0.9:8188", "", "["):
            assert not own(host, "127.0.0.1"), host
        assert own("192.168.0.9:8188", "127.0.0.1,192.168.0.9")
        assert not own("mine.example", "127.0.0.1,192.168.0.9")
        assert own("mine.example", "0.0.0.0,::") and not own("", "0.0.0.0,::")
    finally:
        routes.args.listen = before


def check_the_panel_asks_comfyui_on_this_machine_only(b):
    panel = b.part("nodes.panel")
    before = vars(panel.args).copy()
    try:
        for listen, key, found in (
            ("127.0.0.1", None, "http://127.0.0.1:9"),
            ("0.0.0.0,::", None, "http://127.0.0.1:9"),
            ("192.168.0.9", None, None),
            ("127.0.0.1", "key.pem", None),
        ):
            vars(panel.args).update(listen=listen, tls_keyfile=key, port=9)
            assert panel.own_address() == found
    finally:
        vars(panel.args).update(before)


def check_the_panel_starts_once_and_stops(b):
    panel = b.part("nodes.panel")
    line = "print('noise'); print('S4S panel: http://127.0.0.1:9/', flush=True); "
    line += "import os, time; print(os.environ['S4S_SOLVERS'], flush=True); time.sleep(600)"
    one = panel.Panel([sys.executable, "-c", line])
    assert one.url() is None
    try:
        assert one.start() == one.start() == one.url() == "http://127.0.0.1:9/"
    finally:
        one.stop()
    assert one.url() is None
    address = "import os, sys; sys.exit('At ' + os.environ['S4S_COMFYUI'] + '.')"
    refusal(panel.Panel([sys.executable, "-c", address]).start, f"At {panel.own_address()}.")
    words = "import sys; sys.exit('Install gradio to use the panel.')"
    refusal(panel.Panel([sys.executable, "-c", words]).start, "Install gradio")
    words = "import sys; sys.exit(f'Given {sys.argv[1:]}.')"
    refusal(panel.Panel([sys.executable, "-c", words]).start, "Given [].")
    refusal(lambda: panel.Panel([sys.executable, "-c", words]).start(True), "['--install']")
    usual = panel.Panel()._argv
    assert usual[-4:] == ["panel", "--no-browser", "--follow", str(os.getpid())]
