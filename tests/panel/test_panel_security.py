"""Other web sites and forged requests against a real panel process: refused, without a trace."""

import json
import os
from pathlib import Path

import pytest
from panels import REFUSED, Panel, event_of, files_of

from s4s_core.demo import SOLVERS
from trainer import jobs
from trainer.config import TrainConfig
from trainer.panel.security import host_is_ours, is_allowed

FOREIGN = ("http://evil.example", "https://127.0.0.1.evil.example", "null", "http://127.0.0.1:1")
BOUNDARY = "x" * 20
UPLOAD = (
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="a.safetensors"\r\n'
    f"Content-Type: application/octet-stream\r\n\r\n{'A' * 200_000}\r\n--{BOUNDARY}--\r\n"
).encode()
FORM = f"multipart/form-data; boundary={BOUNDARY}"
CALL = json.dumps({"data": [], "fn_index": 0, "session_hash": "x"}).encode()
ROUTES = [
    ("GET", "/", None),
    ("GET", "/config", None),
    ("GET", "/gradio_api/info", None),
    ("GET", "/gradio_api/file=/etc/passwd", None),
    ("GET", "/gradio_api/queue/data?session_hash=x", None),
    ("POST", "/gradio_api/queue/join", CALL),
    ("POST", "/gradio_api/run/predict", CALL),
    ("POST", "/gradio_api/upload", UPLOAD),
    ("OPTIONS", "/gradio_api/upload", None),
]


@pytest.fixture(scope="module")
def panel(tmp_path_factory):
    with Panel(tmp_path_factory.mktemp("home")) as panel:
        yield panel


def attack(panel, method, path, body, **headers):
    """A request's status, once it is clear that it left nothing behind."""
    before = files_of(panel.home)
    kind = FORM if path.endswith("upload") else "application/json"
    extra = {"Content_Type": kind} if body else {}
    status, text = panel.request(method, path, body, **extra, **headers)
    assert files_of(panel.home) == before
    assert "root:" not in text
    return status


# Which requests are answered, as a table


@pytest.mark.parametrize("host", ["127.0.0.1:7864", "localhost", "localhost:80", "[::1]:7864"])
def test_names_of_this_machine(host):
    assert host_is_ours(host)


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7864"),
        *("127.0.0.1:x", "127.0.0.1@evil.example", "evil.example:127", "0.0.0.0:7864", "[::1"),
        *("localhost:", "127.0.0.2", "LOCALHOST.", "127.0.0.1:80:80"),
    ],
)
def test_names_of_others(host):
    assert not host_is_ours(host)


def headers(**named):
    return [(name.replace("_", "-"), value) for name, value in named.items()]


@pytest.mark.parametrize(
    "allowed, given",
    [
        (True, headers(host="localhost:1")),
        (True, headers(host="localhost:1", origin="http://localhost:1")),
        (True, headers(host="localhost:1", sec_fetch_site="same-origin")),
        (True, headers(host="localhost:1", sec_fetch_site="none")),
        (False, headers(host="localhost:1", origin="http://localhost:2")),
        (False, headers(host="localhost:1", origin="http://127.0.0.1:1")),
        (False, headers(host="localhost:1", origin="")),
        (False, headers(host="localhost:1", origin="null")),
        (False, headers(host="evil.example", origin="http://evil.example")),
        (False, headers(origin="http://localhost:1")),
        (False, headers(host="localhost:1", sec_fetch_site="cross-site")),
        (False, headers(host="localhost:1") * 2),
        (False, headers(host="localhost:1", origin="http://localhost:1") + headers(origin="null")),
    ],
)
def test_requests_are_judged_by_their_headers(allowed, given):
    assert is_allowed(given) is allowed


def test_a_link_from_elsewhere_opens_the_page_but_no_frame():
    link = headers(host="localhost:1", sec_fetch_site="cross-site", sec_fetch_mode="navigate")
    assert is_allowed(link + headers(sec_fetch_dest="document"))
    assert not is_allowed(link + headers(sec_fetch_dest="iframe"))


def test_a_websocket_must_say_where_it_comes_from():
    assert not is_allowed(headers(host="localhost:1"), websocket=True)
    assert is_allowed(headers(host="localhost:1", origin="http://localhost:1"), websocket=True)


# A real process


def test_the_page_is_served_to_its_own(panel):
    status, text = panel.request("GET", "/", Origin=panel.url.rstrip("/"))
    assert status == 200 and "gradio" in text


@pytest.mark.parametrize("method, path, body", ROUTES)
@pytest.mark.parametrize("origin", FOREIGN)
def test_other_origins_are_refused(panel, method, path, body, origin):
    assert attack(panel, method, path, body, Origin=origin) == REFUSED


@pytest.mark.parametrize("method, path, body", ROUTES)
def test_other_hosts_are_refused(panel, method, path, body):
    assert attack(panel, method, path, body, Host="evil.example") == REFUSED


def test_a_refused_upload_is_read_to_its_end(panel):
    """The answer itself arrives, not a broken connection."""
    body = UPLOAD * 10
    status, text = panel.request("POST", "/gradio_api/upload", body, Origin="http://evil.example")
    assert status == REFUSED and (text == "" or "own page" in text)


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file=../../../../etc/passwd",
        "/gradio_api/file=..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/gradio_api/file=file:///etc/passwd",
        "/file=/etc/passwd",
        "/static/../../../../etc/passwd",
        "/assets/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/gradio_api/proxy=http://127.0.0.1:1/",
        "/gradio_api/file=http://127.0.0.1:1/",
        "/monitoring",
    ],
)
def test_no_file_of_this_machine_is_served(panel, path):
    assert attack(panel, "GET", path, None) not in (500, *range(200, 300))


def test_large_uploads_are_refused(panel):
    body = UPLOAD.replace(b"A" * 200_000, b"A" * 3_000_000)
    assert attack(panel, "POST", "/gradio_api/upload", body) >= 400


def test_jobs_cannot_be_made_past_the_queue(panel):
    """The direct route to a function that queues a job is closed."""
    config = json.loads(panel.request("GET", "/config")[1])
    queued = [d for d in config["dependencies"] if d["queue"] and len(d["inputs"]) > 10]
    assert queued
    for dependency in queued:
        call = {"data": [None] * len(dependency["inputs"]), "fn_index": dependency["id"]}
        status = attack(panel, "POST", "/gradio_api/run/predict", json.dumps(call).encode())
        assert status >= 400


def offer(panel, path, **facts):
    """(done well?, text) of telling the tab Solvers that the browser has uploaded a file."""
    event = event_of(panel.config(), "Solver file", "upload")
    file = {"path": str(path), "orig_name": "a.safetensors", "meta": {"_type": "gradio.FileData"}}
    return panel.join(event["id"], [file | facts])


def test_a_file_of_this_machine_cannot_be_passed_off_as_an_upload(panel, tmp_path):
    """A solver elsewhere on this machine would be taken, were it copied: it must never be."""
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes(SOLVERS["ve"].read_bytes())
    before = files_of(panel.home)
    for path in (outside, "/etc/passwd", "../outside.safetensors", f"file://{outside}"):
        well, text = offer(panel, path)
        assert not well and "root:" not in text
        assert files_of(panel.home) == before


def test_a_real_upload_is_taken(panel):
    data = SOLVERS["ve"].read_bytes()
    status, text = panel.upload("my.safetensors", data)
    assert status == 200
    well, text = offer(panel, json.loads(text)[0])
    assert well, text
    (kept,) = (panel.home / "solvers").glob("*.safetensors")
    assert kept.read_bytes() == data
    kept.unlink()


@pytest.mark.parametrize("name", ["../../../evil.safetensors", "/etc/evil.safetensors", "a.html"])
@pytest.mark.parametrize("data", [b"<script>alert(1)</script>", b"", b"\x80\x02."])
def test_an_upload_that_is_no_solver_is_not_kept(panel, name, data):
    """Whatever its name: it goes to the panel's own folder, and from there nowhere."""
    before = files_of(panel.home)
    status, text = panel.upload(name, data)
    if status == 200:
        (path,) = json.loads(text)
        assert "s4s-panel-" in path and ".." not in path
        well, text = offer(panel, path, orig_name=name)
        assert not well
    assert files_of(panel.home) == before
    assert not list(panel.home.parent.glob("*evil*")) and not Path("/etc/evil.safetensors").exists()


def test_a_solver_with_a_hostile_name_of_a_file_gets_the_name_in_its_header(panel):
    status, text = panel.upload("../../../evil.safetensors", SOLVERS["ve"].read_bytes())
    assert status == 200
    well, text = offer(panel, json.loads(text)[0], orig_name="../../../evil.safetensors")
    (kept,) = panel.home.rglob("*.safetensors")
    kept.unlink()
    assert well and kept == panel.home / "solvers" / "demo solver.safetensors"


FILE = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
FORGED = [
    *("../../etc/passwd", "/etc/passwd", "kept.safetensors/../../x", "\0", "x" * 100_000, ""),
    *(0, -1, True, None, [], ["kept.safetensors"], {}, FILE, [FILE], {"__type__": "update"}),
]
CHOSEN = ("radio", "checkboxgroup", "file", "dropdown")


@pytest.fixture
def stocked(panel):
    """The panel with a solver and a job that could be lost."""
    solver = panel.home / "solvers" / "kept.safetensors"
    solver.parent.mkdir(exist_ok=True)
    solver.write_bytes(SOLVERS["ve"].read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("S4S_HOME", str(panel.home))
        patch.delenv("S4S_SOLVERS", raising=False)
        id = jobs.add(TrainConfig(), start=False)
        jobs.cancel(id)
        yield panel
        solver.unlink()
        jobs.delete(id)


def test_forged_values_change_nothing(stocked):
    """Every event that takes a choice or a file, with every value in all of its inputs."""
    config = stocked.config()
    kinds = {component["id"]: component["type"] for component in config["components"]}
    events = [
        event
        for event in config["dependencies"]
        if event["backend_fn"] and any(kinds[number] in CHOSEN for number in event["inputs"])
    ]
    assert len(events) > 10
    before = files_of(stocked.home)
    for event in events:
        for value in FORGED:
            _, text = stocked.join(event["id"], [value] * len(event["inputs"]))
            assert "root:" not in text
            assert files_of(stocked.home) == before, (event["targets"], value)


def listened_on(pid):
    """The local addresses of a process's listening sockets, as /proc has them."""
    links = (os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir())
    own = {link[8:-1] for link in links if link.startswith("socket:[")}
    found = []
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and inode in own:
                found.append(local.partition(":")[0])
    return found


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs /proc")
def test_nothing_but_loopback_is_listened_on(panel):
    assert panel.url.startswith("http://127.0.0.1:")
    assert listened_on(panel.process.pid) == ["0100007F"]


def test_nothing_is_told_to_others(panel):
    config = panel.config()
    assert not config.get("analytics_enabled") and not config.get("is_space")


def test_it_still_answers(panel):
    """Last in the file: none of the attacks has brought it down."""
    assert panel.process.poll() is None
    assert panel.request("GET", "/config")[0] == 200
