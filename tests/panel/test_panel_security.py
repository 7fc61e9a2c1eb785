"""A running panel refuses other web sites and forged requests, and they leave no trace."""

import json
import os
import shutil
from pathlib import Path

import pytest
from hostile import fill_with_hostile_entries
from panels import FORM, REFUSED, ROOT, Panel, event_of, files_of, form

from s4s_core.demo import SOLVERS
from trainer.config import TrainConfig
from trainer.jobs import queue_job
from trainer.panel import compare
from trainer.panel.guard import is_allowed, is_own_host

LARGE = b"A" * 3_000_000
FOREIGN = ("http://evil.example", "https://127.0.0.1.evil.example", "null", "http://127.0.0.1:1")
CALL = json.dumps({"data": [], "fn_index": 0, "session_hash": "x"}).encode()
ROUTES = [
    ("GET", "/", None),
    ("GET", "/config", None),
    ("GET", "/gradio_api/info", None),
    ("GET", "/gradio_api/file=/etc/passwd", None),
    ("GET", "/gradio_api/queue/data?session_hash=x", None),
    ("POST", "/gradio_api/queue/join", CALL),
    ("POST", "/gradio_api/run/predict", CALL),
    ("POST", "/gradio_api/upload", form("a.safetensors", b"A" * 200_000)),
    ("OPTIONS", "/gradio_api/upload", None),
]


@pytest.fixture(scope="module")
def panel(tmp_path_factory):
    with Panel(tmp_path_factory.mktemp("home")) as panel:
        status, text = panel.request("GET", "/", Origin=panel.url.rstrip("/"))
        assert status == 200 and "gradio" in text
        config = panel.config()
        assert not config.get("analytics_enabled") and not config.get("is_space")
        yield panel
        assert panel.process.poll() is None, "the panel survives all attacks"


def attack(panel, method, path, body, **headers):
    """Send a request, check that it changed no file, and return its status."""
    before = files_of(panel.home)
    kind = FORM if path.endswith("upload") else "application/json"
    extra = {"Content_Type": kind} if body else {}
    status, text = panel.request(method, path, body, **extra, **headers)
    assert files_of(panel.home) == before
    assert "root:" not in text
    return status


# Which requests are answered


def test_only_names_of_this_machine_are_accepted_as_host():
    own = ["127.0.0.1:7864", "localhost", "localhost:80", "[::1]:7864"]
    others = (
        *("", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7864", "[::1"),
        *("127.0.0.1:x", "127.0.0.1@evil.example", "evil.example:127", "0.0.0.0:7864"),
        *("localhost:", "127.0.0.2", "LOCALHOST.", "127.0.0.1:80:80"),
    )
    assert [host for host in (*own, *others) if is_own_host(host)] == own


HOST = ("host", "localhost:1")
OWN, NULL = ("origin", "http://localhost:1"), ("origin", "null")
CROSS, LINK = ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")


@pytest.mark.parametrize(
    "allowed, given",
    [
        (True, [HOST]),
        (True, [HOST, OWN]),
        (True, [HOST, ("sec-fetch-site", "same-origin")]),
        (True, [HOST, ("sec-fetch-site", "none")]),
        (True, [HOST, CROSS, LINK, ("sec-fetch-dest", "document")]),
        (False, [HOST, CROSS, LINK, ("sec-fetch-dest", "iframe")]),
        (False, [HOST, ("origin", "http://localhost:2")]),
        (False, [HOST, ("origin", "http://127.0.0.1:1")]),
        (False, [HOST, ("origin", "")]),
        (False, [HOST, NULL]),
        (False, [("host", "evil.example"), ("origin", "http://evil.example")]),
        (False, [OWN]),
        (False, [HOST, CROSS]),
        (False, [HOST, HOST]),
        (False, [HOST, OWN, NULL]),
    ],
)
def test_headers_decide_which_requests_are_answered(allowed, given):
    assert is_allowed(given) is allowed
    assert is_allowed(given, websocket=True) is (allowed and OWN in given)


# A running panel


@pytest.mark.parametrize("method, path, body", ROUTES)
def test_other_origins_and_hosts_are_refused(panel, method, path, body):
    for origin in FOREIGN:
        assert attack(panel, method, path, body, Origin=origin) == REFUSED
    assert attack(panel, method, path, body, Host="evil.example") == REFUSED


PASSWD, QUOTED = "../../../../etc/passwd", "..%2f..%2f..%2f..%2fetc%2fpasswd"
API, ELSEWHERE = "/gradio_api/file=", "http://127.0.0.1:1/"


@pytest.mark.parametrize(
    "path",
    [
        *(API + file for file in ("/etc/passwd", PASSWD, QUOTED, "file:///etc/passwd", ELSEWHERE)),
        *("/file=/etc/passwd", f"/static/{PASSWD}", f"/assets/{QUOTED}"),
        *(f"/gradio_api/proxy={ELSEWHERE}", "/monitoring"),
    ],
)
def test_no_file_of_this_machine_is_served(panel, path):
    assert attack(panel, "GET", path, None) not in (500, *range(200, 300))


def test_jobs_cannot_be_made_past_the_queue(panel):
    """The direct route to the function that queues a job is closed."""
    queued = [d for d in panel.config()["dependencies"] if d["queue"] and len(d["inputs"]) > 10]
    assert queued
    for event in queued:
        call = {"data": [None] * len(event["inputs"]), "fn_index": event["id"]}
        body = json.dumps(call).encode()
        assert attack(panel, "POST", "/gradio_api/run/predict", body) >= 400


def offer(panel, path, **facts):
    """Tell the tab Solvers that the browser has uploaded a file; return (success, text)."""
    event = event_of(panel.config(), "Solver file", "upload")
    file = {"path": str(path), "orig_name": "a.safetensors", "meta": {"_type": "gradio.FileData"}}
    return panel.join(event["id"], [file | facts])


def test_a_file_of_this_machine_cannot_be_passed_off_as_an_upload(panel, tmp_path):
    """Not even a valid solver file outside the panel's folders is copied."""
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes(SOLVERS["ve"].read_bytes())
    before = files_of(panel.home)
    for path in (outside, "/etc/passwd", "../outside.safetensors", f"file://{outside}"):
        success, text = offer(panel, path)
        assert not success and "root:" not in text
        assert files_of(panel.home) == before


def test_a_solver_is_saved_under_the_name_in_its_header(panel):
    data = SOLVERS["ve"].read_bytes()
    for name in ("my.safetensors", "../../../evil.safetensors"):
        status, text = panel.upload(name, data)
        assert status == 200
        success, text = offer(panel, json.loads(text)[0], orig_name=name)
        assert success, text
        kept = panel.home / "solvers" / "demo solver.safetensors"
        assert list(kept.parent.iterdir()) == [kept]
        assert kept.read_bytes() == data
        kept.unlink()


@pytest.mark.parametrize("name", ["../../../evil.safetensors", "/etc/evil.safetensors", "a.html"])
@pytest.mark.parametrize("data", [b"<script>alert(1)</script>", b"", b"\x80\x02.", LARGE])
def test_an_upload_that_is_large_or_no_solver_is_not_kept(panel, name, data):
    """Whatever its name is: it goes to the panel's temporary folder and nowhere else."""
    before = files_of(panel.home)
    status, text = panel.upload(name, data)
    assert status >= 400 or data is not LARGE
    if status == 200:
        (path,) = json.loads(text)
        assert "s4s-panel-" in path and ".." not in path
        success, text = offer(panel, path, orig_name=name)
        assert not success
    assert files_of(panel.home) == before
    assert not list(panel.home.parent.glob("*evil*")) and not Path("/etc/evil.safetensors").exists()


def test_a_large_request_leaves_nothing(panel):
    """However many files it has, and if it does not say how long it is."""
    chunks = iter([form("a.safetensors", b"A")])
    for body in (form("a.safetensors", b"A" * 5_000_000), chunks):
        status, text = panel.request("POST", "/gradio_api/upload", body, Content_Type=FORM)
        assert status == 413 and "at most 4 MB" in text


def test_odd_requests_print_a_line_each(panel):
    paths = [f"/gradio_api/{name}" for name in ("run/predict", "queue/join", "call/v2/refresh")]
    call, kind = b'{"data": [], "fn_index": -1, "session_hash": "x"}', "application/json"
    with panel.lines_meanwhile() as lines:
        for path in paths:
            assert panel.request("POST", path, call, Content_Type=kind)[0] == 500
    assert [line.split(": ")[:2] for line in lines] == [["error", f"POST {path}"] for path in paths]


def test_a_mistake_of_the_user_prints_nothing(panel):
    """It is shown on the page; the terminal is for faults of the panel."""
    events = panel.config()["dependencies"]
    upload = event_of(panel.config(), "Solver file", "upload")
    given = ["demo", "", None, None, 0, 4, "", next(iter(compare.CLASSICAL)), "", 0, 0, 0]
    given += ["auto", False]
    (render,) = (d for d in events if d["queue"] and len(d["inputs"]) == len(given))
    with panel.lines_meanwhile() as lines:
        assert "Choose a file" in panel.join(upload["id"], [None])[1]
        assert "Choose a solver" in panel.join(render["id"], given)[1]
    assert lines == []


def message(panel, label, values):
    """Click a button with these values of its inputs; return the error that the page shows."""
    config = panel.config()
    (number,) = (c["id"] for c in config["components"] if c["props"].get("value") == label)
    (event,) = (d for d in config["dependencies"] if [number, "click"] in map(list, d["targets"]))
    return json.loads(panel.join(event["id"], values)[1])["output"]["error"]


def test_a_choice_that_has_just_gone_is_refused_in_a_sentence_and_the_page_refreshed(panel):
    """Another page has deleted it; Gradio's own check would fail with a list of all choices."""
    (refresh, *_) = (e["id"] for e in panel.config()["dependencies"] if len(e["inputs"]) == 6)
    no_job, no_file = "This job no longer exists.", "There is no solver file"
    with panel.lines_meanwhile() as lines:
        success, text = panel.join(refresh, ["{}", "gone", "gone", "9", "gone", "9"])
        listed = json.loads(text)["output"]["data"][0]
        assert success and listed["choices"] == [] and listed["value"] is None
        for label, gone, said in (
            ("Cancel", ["gone"], no_job),
            ("Resume", ["gone"], no_job),
            ("Yes, delete this job", ["gone"], no_job),
            ("Use these settings in Train", ["gone"], no_job),
            ("Yes, delete this file", ["gone"], no_file),
            ("Merge", [["gone", "gone too"], ""], no_file),
        ):
            shown = message(panel, label, gone)
            assert shown.startswith(said) and shown.isprintable() and len(shown) < 300
    assert lines == []


FILE = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
FORGED = [
    *("../../etc/passwd", "/etc/passwd", "kept.safetensors/../../x", "\0", "x" * 100_000, ""),
    *(0, -1, True, None, [], ["kept.safetensors"], {}, FILE, [FILE], {"__type__": "update"}),
]


@pytest.fixture
def stocked(panel):
    """The panel with a solver and a job that could be lost."""
    solver = panel.home / "solvers" / "kept.safetensors"
    solver.parent.mkdir(exist_ok=True)
    solver.write_bytes(SOLVERS["ve"].read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("S4S_HOME", str(panel.home))
        patch.delenv("S4S_SOLVERS", raising=False)
        job = queue_job(TrainConfig(), start=False)
        job.cancel()
        yield panel
        solver.unlink()
        job.delete()


def test_forged_values_change_nothing(stocked):
    """Send every forged value to all inputs of every event that takes a choice or a file."""
    config = stocked.config()
    kinds = {component["id"]: component["type"] for component in config["components"]}
    chosen = {"radio", "checkboxgroup", "file", "dropdown"}
    events = [
        event
        for event in config["dependencies"]
        if event["backend_fn"] and chosen & {kinds[number] for number in event["inputs"]}
    ]
    assert len(events) > 10
    before = files_of(stocked.home)
    for event in events:
        for value in FORGED:
            _, text = stocked.join(event["id"], [value] * len(event["inputs"]))
            assert "root:" not in text
            assert files_of(stocked.home) == before, (event["targets"], value)


def test_hostile_entries_of_the_solver_folder_disable_no_tab(panel):
    folder = panel.home / "solvers"
    folder.mkdir(exist_ok=True)
    listed, bad = fill_with_hostile_entries(folder, SOLVERS["ve"].read_bytes())
    (refresh, *_) = (e["id"] for e in panel.config()["dependencies"] if len(e["inputs"]) == 6)
    success, text = panel.join(refresh, [None] * 6)
    shutil.rmtree(folder)
    values = json.loads(text)["output"]["data"]
    choices = [
        value["choices"] for value in values if isinstance(value, dict) and "choices" in value
    ]
    names = [{name for name, _ in offered} for offered in choices]
    assert success and sum(listed <= offered for offered in names) == 3  # two lists and Compare's
    assert text.count("s4s-bad") == bad


def nest(folder, depth):
    """Make folders in each other, the innermost of a path that is too long for any file."""
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 250, dir_fd=handle)
        outer, handle = handle, os.open("d" * 250, os.O_RDONLY, dir_fd=handle)
        os.close(outer)
    os.close(handle)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="file names here are Unicode")
def test_hostile_names_of_checkpoints_and_folders_disable_no_page(tmp_path):
    """Those of the host's checkpoints, of its folder and of the data folder."""
    host = tmp_path / os.fsdecode(b"caf\xe9")
    folder, checkout = host / "models" / "checkpoints", host / "custom_nodes" / "s4s"
    for made in (folder, checkout.parent):
        made.mkdir(parents=True)
    checkout.symlink_to(ROOT)
    listed, _ = fill_with_hostile_entries(folder, b"")
    nest(folder, 20)
    panel = Panel(tmp_path / os.fsdecode(b"home\xff"))
    panel.command[1:3] = [str(checkout / "trainer" / "__main__.py")]
    with panel:
        assert panel.request("GET", "/")[0] == 200
        named = (c["props"] for c in panel.config()["components"])
        fields = [props for props in named if props.get("label") == "Checkpoint"]
    for props in fields:
        offered = {value.partition("/checkpoints/")[2] for _, value in props["choices"]}
        assert offered == listed and "Rename it." in props["info"] and len(props["info"]) < 1000
    assert len(fields) == 2


def listened_on(pid):
    """Return the local addresses of a process's listening sockets, as /proc writes them."""
    links = (os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir())
    own = {link[8:-1] for link in links if link.startswith("socket:[")}
    addresses = []
    for table in ("tcp", "tcp6"):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A" and inode in own:
                addresses.append(local.partition(":")[0])
    return addresses


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs /proc")
def test_the_panel_listens_on_loopback_only(panel):
    assert panel.url.startswith("http://127.0.0.1:")
    assert listened_on(panel.process.pid) == ["0100007F"]
