"""The sidebar in a real browser on a real ComfyUI:

COMFYUI_PATH=... python -m pytest --long tests/comfyui/test_sidebar.py
"""

import re
import urllib.request
from pathlib import Path

import pytest

from s4s_core import load_solver, save_solver
from s4s_core.demo import SOLVERS
from s4s_core.table import SolverPack
from tools import comfy_browser, example_workflows
from trainer.config import TrainConfig
from trainer.jobs import queue_job

pytestmark = [
    pytest.mark.host,
    pytest.mark.slow,
    pytest.mark.skipif(comfy_browser.missing() is not None, reason=str(comfy_browser.missing())),
]

ROOT = Path(__file__).resolve().parents[2]
EVIL = '"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwAD"
    "hgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("host") / "comfyui"


@pytest.fixture(scope="module")
def server(folder):
    with comfy_browser.comfyui(folder) as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    with comfy_browser.browser() as opened:
        yield opened


@pytest.fixture
def solvers(folder, server):
    """The folder of solver files, emptied afterwards."""
    place = folder / "models" / "s4s_solvers"
    place.mkdir(parents=True, exist_ok=True)
    yield place
    for file in place.glob("*"):
        file.unlink()


@pytest.fixture
def page(server, browser):
    """ComfyUI's page with default settings; any script error fails the test."""
    comfy_browser.set_up(server)
    with comfy_browser.page(browser, server) as shown:
        yield shown
        assert shown.errors == []


def open_graph(page, name):
    comfy_browser.open_workflow(page, example_workflows.build(name).workflow())


def clear(page):
    page.evaluate("() => window.app.canvas.graph.clear()")


def graph(page):
    """{id: {type, inputs by name as source types, widgets}} of the page's graph."""
    return page.evaluate(
        """() => Object.fromEntries(window.app.canvas.graph.nodes.map((node) => [node.id, {
            type: node.type,
            inputs: Object.fromEntries((node.inputs ?? []).map((slot, i) =>
                [slot.name, node.getInputNode(i)?.type ?? null])),
            widgets: Object.fromEntries((node.widgets ?? []).map((w) => [w.name, w.value])),
        }]))"""
    )


def select(page, kind):
    page.evaluate(
        """(kind) => {
            const { canvas } = window.app;
            canvas.selectNode(canvas.graph.nodes.find((node) => node.type === kind));
        }""",
        kind,
    )


def test_modules_are_served_as_javascript(server):
    for path in (ROOT / "web/s4s").glob("*.mjs"):
        with urllib.request.urlopen(f"{server}/extensions/s4s/s4s/{path.name}") as answer:
            assert "javascript" in answer.headers["Content-Type"]


def test_the_tab_shows_the_bundled_solver(page):
    comfy_browser.open_tab(page)
    page.wait_for_selector(".s4s-plot")
    text = page.inner_text(".s4s-sidebar")
    assert "demo solver" in text and re.search(r"−\d+ % error", text)
    assert page.locator(".s4s-chip").count() == len(load_solver(SOLVERS["ve"]).nfes)
    dots = page.locator(".s4s-node").count()
    page.click('[data-key="8/demo.safetensors"]')
    page.wait_for_function(f"document.querySelectorAll('.s4s-node').length > {dots}")


def test_the_tab_can_be_closed_and_opened_again(page):
    for _ in range(2):
        comfy_browser.open_tab(page)
        page.click(".s4s-tab-button")
        page.wait_for_selector(".s4s-sidebar", state="detached")


def test_add_with_nothing_selected(page):
    clear(page)
    comfy_browser.open_tab(page)
    page.click('[data-key="add/demo.safetensors"]')
    nodes = graph(page).values()
    assert sorted(node["type"] for node in nodes) == ["S4SApplySolver", "S4SLoadSolver"]
    apply = next(node for node in nodes if node["type"] == "S4SApplySolver")
    assert apply["inputs"] == {"model": None, "solver": "S4SLoadSolver"}


def test_add_to_a_selected_ksampler(page):
    open_graph(page, "text-to-image-sd15")
    page.evaluate(
        """() => {
            const { graph } = window.app.canvas;
            const of = (kind) => graph.nodes.find((node) => node.type === kind);
            of("CheckpointLoaderSimple").connect(0, of("KSampler"), 0);
            for (const kind of ["S4SApplySolver", "S4SLoadSolver"]) graph.remove(of(kind));
        }"""
    )
    select(page, "KSampler")
    comfy_browser.open_tab(page)
    page.click('[data-key="8/demo.safetensors"]')
    page.click('[data-key="add/demo.safetensors"]')
    nodes = graph(page).values()
    sampler = next(node for node in nodes if node["type"] == "KSampler")
    apply = next(node for node in nodes if node["type"] == "S4SApplySolver")
    assert sampler["inputs"]["model"] == "S4SApplySolver"
    assert apply["inputs"] == {"model": "CheckpointLoaderSimple", "solver": "S4SLoadSolver"}
    chosen = {key: sampler["widgets"][key] for key in ("sampler_name", "scheduler", "steps")}
    assert chosen == {"sampler_name": "s4s", "scheduler": "s4s", "steps": 8}


def test_the_list_of_steps_follows_the_solver(page, solvers):
    whole = load_solver(SOLVERS["ve"])
    save_solver(solvers / "two.safetensors", SolverPack({4: whole[4], 9: whole[9]}, {}))
    page.reload()
    page.wait_for_selector(".s4s-tab-button")
    open_graph(page, "flux")
    page.evaluate(
        """() => {
            const { nodes } = window.app.canvas.graph;
            const load = nodes.find((node) => node.type === "S4SLoadSolver");
            const widget = load.widgets.find((one) => one.name === "solver");
            widget.value = "two.safetensors";
            widget.callback(widget.value);
        }"""
    )
    page.wait_for_function(
        """() => {
            const node = window.app.canvas.graph.nodes.find((one) => one.type === "S4SSampler");
            const widget = node.widgets.find((one) => one.name === "steps");
            return JSON.stringify(widget.options.values) === "[4,9]" && widget.value === 4;
        }"""
    )


def luminance(colour):
    """The luminance of a CSS colour as WCAG defines it."""
    parts = [float(part) for part in re.findall(r"[\d.]+", colour)[:3]]
    if not colour.startswith("color("):
        parts = [part / 255 for part in parts]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["dark", "light", "arc", "nord", "solarized", "github"])
def test_texts_are_readable_in_every_palette(server, browser, theme):
    comfy_browser.set_up(server, **{"Comfy.ColorPalette": theme})
    with comfy_browser.page(browser, server) as page:
        comfy_browser.open_tab(page)
        page.wait_for_selector(".s4s-plot")
        for selector in (".s4s-card strong", ".s4s-card .s4s-faint", ".s4s-value"):
            front = page.eval_on_selector(selector, "(e) => getComputedStyle(e).color")
            back = page.eval_on_selector(".s4s-card", "(e) => getComputedStyle(e).backgroundColor")
            light, dark = sorted((luminance(front), luminance(back)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 3.0, (selector, front, back)


def test_hostile_and_damaged_files_are_only_text(page, solvers):
    whole = load_solver(SOLVERS["ve"])
    about = {
        "name": EVIL,
        "notes": EVIL,
        "model": {"name": EVIL},
        "thumbnail": PIXEL,
        "scores": {"5": {"rmse": 0.1, "classical": 0.2, "classical_name": EVIL}},
    }
    name = "<img src=x onerror=window.hacked=1>.safetensors"
    save_solver(solvers / name, SolverPack({5: whole[5]}, about))
    (solvers / "<b>broken.safetensors").write_bytes(b"no solver")
    comfy_browser.open_tab(page)
    page.click(f'[data-key="open/{name}"]')
    page.wait_for_selector(".s4s-plot")
    page.click('[data-key="refresh"]')
    page.wait_for_selector(".s4s-broken")
    text = page.inner_text(".s4s-sidebar")
    assert EVIL[:30] in text and "<b>broken.safetensors" in text
    assert page.evaluate("window.hacked") is None
    sources = page.eval_on_selector_all(".s4s-sidebar img", "all => all.map((one) => one.src)")
    assert all("/api/s4s/thumbnail?file=" in source for source in sources)
    (own,) = [source for source in sources if "file=%3Cimg" in source]
    width = "(src) => [...document.images].find((one) => one.src === src)?.naturalWidth === 1"
    page.wait_for_function(width, arg=own)
    page.click(f'[data-key="add/{name}"]')
    assert name in [node["widgets"].get("solver") for node in graph(page).values()]
    assert page.evaluate("window.hacked") is None


def test_a_waiting_job_is_shown_and_cancelled(page, folder, monkeypatch):
    monkeypatch.setenv("S4S_HOME", str(folder / "s4s"))
    job = queue_job(TrainConfig(name="waiting <b>job</b>"), start=False)
    comfy_browser.open_tab(page)
    page.wait_for_selector(".s4s-job")
    assert "waiting <b>job</b>" in page.inner_text(".s4s-job")
    page.click(f'[data-key="cancel/{job.id}"]')
    page.wait_for_selector(".s4s-job", state="detached")
    assert job.view().status == "cancelled"


def test_training_in_the_graph_is_shown_and_cancelled(page, server):
    open_graph(page, "train-in-the-graph")
    comfy_browser.open_tab(page)
    page.evaluate("() => window.app.queuePrompt(0, 1)")
    page.wait_for_selector(".s4s-job .s4s-progress")
    page.wait_for_selector(".s4s-preview")
    page.click('[data-key="cancel/graph"]')
    page.wait_for_selector('[data-key="cancel/graph"]', state="detached")
    page.wait_for_function(
        "async () => !(await (await fetch('/queue')).json()).queue_running.length"
    )


def test_a_mismatch_shows_a_toast(page):
    open_graph(page, "demo-quick-start")
    page.evaluate(
        """() => {
            const { graph } = window.app.canvas;
            const sampler = graph.nodes.find((node) => node.title === "S4S: 5 steps");
            sampler.widgets.find((one) => one.name === "cfg").value = 9;
            window.app.queuePrompt(0, 1);
        }"""
    )
    toast = page.locator(".p-toast-message-warn").first
    toast.wait_for()
    assert "9" in toast.inner_text()


def test_the_trainer_opens_in_a_new_tab(page, server):
    address = f"{server}/system_stats"
    page.route("**/s4s/panel", lambda route: route.fulfill(json={"url": address, "ready": True}))
    comfy_browser.open_tab(page)
    with page.expect_popup() as popup:
        page.click('[data-key="trainer"]')
    popup.value.wait_for_url(address)
    assert popup.value.evaluate("window.opener") is None


def test_a_trainer_that_does_not_start_shows_the_error(page):
    def refuse(route):
        if route.request.method == "GET":
            route.fulfill(json={"url": None, "ready": True})
        else:
            route.fulfill(status=503, json={"error": "The trainer panel did not start."})

    page.route("**/s4s/panel", refuse)
    comfy_browser.open_tab(page)
    page.click('[data-key="trainer"]')
    toast = page.locator(".p-toast-message-error").first
    toast.wait_for()
    assert "did not start" in toast.inner_text()


def test_help_is_shown_for_a_node(page):
    open_graph(page, "train-in-the-graph")
    select(page, "S4STrainSolver")
    page.wait_for_selector('[data-testid="info-button"]')
    page.eval_on_selector('[data-testid="info-button"]', "(button) => button.click()")
    page.wait_for_selector("text=uses no back-propagation")


def test_the_sidebar_is_translated(server, browser):
    comfy_browser.set_up(server, **{"Comfy.Locale": "zh"})
    with comfy_browser.page(browser, server) as page:
        comfy_browser.open_tab(page)
        assert "求解器" in page.inner_text(".s4s-sidebar")


@pytest.mark.parametrize("name", example_workflows.WORKFLOWS)
def test_workflows_open_without_missing_nodes(page, name):
    open_graph(page, name)
    made = example_workflows.build(name).workflow()
    kinds = sorted(node["type"] for node in graph(page).values())
    assert kinds == sorted(node["type"] for node in made["nodes"])
    known = page.evaluate("() => Object.keys(window.LiteGraph.registered_node_types)")
    assert set(kinds) <= set(known)
    assert page.evaluate("() => window.app.graph.serialize().links.length") == len(made["links"])
    asked = example_workflows.build(name).prompt()
    sent = page.evaluate("async () => (await window.app.graphToPrompt()).output")
    assert set(sent) == set(asked)
    for key, entry in asked.items():  # the page may send more, from its own widgets
        assert {name: sent[key]["inputs"].get(name) for name in entry["inputs"]} == entry["inputs"]
