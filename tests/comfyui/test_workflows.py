"""The example workflows: made by their tool, valid against the nodes, each with a picture."""

import copy
import json
import os
import struct
import urllib.request

import pytest

from tools import comfy_browser, example_workflows

FOLDER = example_workflows.FOLDER
FILES = sorted(FOLDER.glob("*.json"))
DEFINITIONS = example_workflows.definitions()
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")


def load(name):
    return json.loads((FOLDER / f"{name}.json").read_text("utf-8"))


def faults(workflow, definitions):
    """What ComfyUI would stumble over in a workflow, one sentence each."""
    nodes = {node["id"]: node for node in workflow["nodes"]}
    known = {i: n for i, n in nodes.items() if n["type"] in definitions}
    found = []
    if len(nodes) != len(workflow["nodes"]):
        found.append("two nodes have the same id")
    missing = {n["type"] for i, n in nodes.items() if i not in known} - {"MarkdownNote"}
    found += [f"there is no node {kind}" for kind in sorted(missing)]
    found += _link_faults(workflow, known)
    for node in known.values():
        found += _node_faults(node, definitions[node["type"]])
    return found


def _link_faults(workflow, nodes):
    links = {link[0]: link for link in workflow["links"]}
    seen = set()
    for node in nodes.values():
        for slot, socket in enumerate(node["inputs"]):
            if socket["link"] is None:
                continue
            number, source, output, target, into, kind = links.get(socket["link"]) or [None] * 6
            seen.add(number)
            if (target, into) != (node["id"], slot):
                yield f"link {socket['link']} does not end at {node['type']}.{socket['name']}"
            elif source not in nodes or output >= len(nodes[source]["outputs"]):
                yield f"link {number} begins nowhere"
            elif number not in (nodes[source]["outputs"][output]["links"] or []):
                yield f"link {number} is unknown to its source"
            elif kind != nodes[source]["outputs"][output]["type"]:
                yield f"link {number} says that it is {kind}"
            elif socket["type"] not in (kind, "*"):
                yield f"{node['type']}.{socket['name']} takes {socket['type']}, not {kind}"
    if seen != set(links):
        yield f"links that no input has: {sorted(set(links) - seen)}"


def _node_faults(node, definition):
    kind, inputs = node["type"], definition["inputs"]
    outputs = [[slot["type"], slot["name"]] for slot in node["outputs"]]
    if outputs != definition["outputs"]:
        yield f"{kind} has other outputs"
    sockets = {socket["name"]: socket for socket in node["inputs"]}
    for name, socket in sockets.items():
        if inputs.get(name, {}).get("type") != socket["type"]:
            yield f"{kind} has no input {name} of type {socket['type']}"
    for name, wanted in inputs.items():
        wired = name in sockets and sockets[name]["link"] is not None
        if wanted["required"] and wanted["type"] not in WIDGETS and not wired:
            yield f"{kind}.{name} is not wired"
    yield from _value_faults(kind, inputs, list(node["widgets_values"]))


def _value_faults(kind, inputs, values):
    """Values stand in the order of the widgets; the page adds one after a seed or an upload."""
    for name, wanted in inputs.items():
        if wanted["type"] not in WIDGETS:
            continue
        if not values:
            yield f"{kind} has too few values"
            return
        value = values.pop(0)
        if not _fits(value, wanted):
            yield f"{kind}.{name} cannot be {value!r}"
        if wanted.get("control_after_generate", name in ("seed", "noise_seed")):
            if values.pop(0) not in ("fixed", "randomize", "increment", "decrement"):
                yield f"{kind}.{name} is not followed by what becomes of it"
        elif kind == "LoadImage" and name == "image":
            values.pop(0)
    if values:
        yield f"{kind} has too many values"


def _fits(value, wanted):
    types = {"INT": int, "FLOAT": (int, float), "STRING": str, "BOOLEAN": bool}
    if wanted["type"] == "COMBO":
        return "options" not in wanted or value in wanted["options"]
    if not isinstance(value, types[wanted["type"]]):
        return False
    low, high = wanted.get("min"), wanted.get("max")
    return (low is None or value >= low) and (high is None or value <= high)


def jpeg_size(path):
    """(width, height) of a JPEG file, from its frame header."""
    data, at = path.read_bytes(), 2
    assert data[:2] == b"\xff\xd8"
    while data[at + 1] not in (0xC0, 0xC2):
        at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    height, width = struct.unpack(">HH", data[at + 5 : at + 9])
    return width, height


def test_all_that_is_asked_for_is_there():
    assert [path.stem for path in FILES] == sorted(example_workflows.WORKFLOWS)
    assert len(FILES) >= 7


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_workflow_is_what_its_declaration_makes(path):
    made = example_workflows.as_text(example_workflows.build(path.stem).workflow())
    assert path.read_text("utf-8") == made, "run tools/example_workflows.py"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_workflow_is_valid(path):
    assert faults(json.loads(path.read_text("utf-8")), DEFINITIONS) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_workflow_has_a_picture_and_a_note(path):
    width, height = jpeg_size(path.with_suffix(".jpg"))
    assert 300 <= width <= 1024 and 300 <= height <= 1024
    assert path.with_suffix(".jpg").stat().st_size < 150_000
    notes = [n for n in json.loads(path.read_text("utf-8"))["nodes"] if n["type"] == "MarkdownNote"]
    assert len(notes) == 1 and len(notes[0]["widgets_values"][0]) > 80


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_node_lies_on_another(path):
    boxes = [(*n["pos"], *n["size"]) for n in json.loads(path.read_text("utf-8"))["nodes"]]
    for i, (x, y, w, h) in enumerate(boxes):
        for left, top, width, height in boxes[:i]:
            assert x >= left + width or left >= x + w or y >= top + height or top >= y + h


def spoil_link(w):
    w["links"][0][5] = "VAE"


def spoil_source(w):
    w["links"][0][1] = 999


def spoil_type(w):
    next(n for n in w["nodes"] if n["type"] == "KSampler")["type"] = "KSamplerOfTomorrow"


def spoil_value(w):
    next(n for n in w["nodes"] if n["type"] == "KSampler")["widgets_values"][4] = "s5s"


def spoil_bounds(w):
    next(n for n in w["nodes"] if n["type"] == "KSampler")["widgets_values"][6] = 1.5


def spoil_count(w):
    next(n for n in w["nodes"] if n["type"] == "KSampler")["widgets_values"].append(3)


def spoil_wire(w):
    next(n for n in w["nodes"] if n["type"] == "S4SApplySolver")["inputs"][1]["link"] = None


@pytest.mark.parametrize(
    "spoil",
    [spoil_link, spoil_source, spoil_type, spoil_value, spoil_bounds, spoil_count, spoil_wire],
)
def test_a_spoilt_workflow_is_found_out(spoil):
    workflow = copy.deepcopy(load("demo-quick-start"))
    spoil(workflow)
    assert list(faults(workflow, DEFINITIONS))


def test_workflows_use_every_way_to_sample():
    used = {node["type"] for path in FILES for node in json.loads(path.read_text("utf-8"))["nodes"]}
    assert {"KSampler", "SamplerCustomAdvanced", "S4SApplySolver", "S4SSampler"} <= used
    assert {"S4STrainSolver", "S4SCompare", "S4SSaveSolver", "S4SDemoModel"} <= used


# ---------------------------------------------------------------- against the real ComfyUI

needs_host = pytest.mark.skipif(
    not os.environ.get("COMFYUI_PATH"), reason="COMFYUI_PATH names no ComfyUI"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with comfy_browser.comfyui(tmp_path_factory.mktemp("comfyui")) as url:
        yield url


@needs_host
@pytest.mark.host
@pytest.mark.slow
class TestHost:
    def test_our_nodes_are_as_recorded_and_the_stock_ones_fit(self, server):
        found = example_workflows.record(comfy_browser.get(f"{server}/object_info"))
        for name in found:
            if name.startswith("S4S"):
                assert found[name] == DEFINITIONS[name], "run tools/example_workflows.py --record"
        for path in FILES:
            assert faults(json.loads(path.read_text("utf-8")), found) == []

    def test_templates_are_offered_with_their_pictures(self, server):
        names = comfy_browser.get(f"{server}/workflow_templates")["s4s"]
        assert sorted(names) == sorted(example_workflows.WORKFLOWS)
        for name in names:
            address = f"{server}/api/workflow_templates/s4s/{name}.jpg"
            with urllib.request.urlopen(address) as answer:
                assert answer.headers["Content-Type"] == "image/jpeg"

    @pytest.mark.parametrize("name", ["demo-quick-start", "compare"])
    def test_what_needs_no_download_runs(self, server, name):
        prompt = example_workflows.build(name).prompt()
        ended = comfy_browser.run_prompt(server, prompt)
        assert ended["status"]["status_str"] == "success", ended["status"]
        assert any("images" in output for output in ended["outputs"].values())
