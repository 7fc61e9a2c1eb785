"""Build ComfyUI workflows from short declarations.

`Graph` collects nodes and works out their positions. What the nodes look like is in
tools/node_definitions.json, recorded from a ComfyUI with this pack installed, so that workflows can
be made and checked without one.
"""

import json
from pathlib import Path
from typing import Any

DEFINITIONS = Path(__file__).resolve().with_name("node_definitions.json")

Definition = dict[str, Any]
"""{"inputs": {name: {"type", "required", "default", ...}}, "outputs": [[type, name]]}."""

WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
WITH_PICTURE = ("PreviewImage", "SaveImage", "LoadImage", "PreviewAny")
MULTILINE = ("text", "prompts", "notes")
FILES = ("ckpt_name", "unet_name", "clip_name1", "clip_name2", "vae_name", "solver", "image")
"""Inputs that list the user's files."""
COLUMN, GAP, TITLE, SLOT, WIDGET, TEXT, PICTURE = 330, 50, 30, 20, 24, 120, 260


def definitions() -> dict[str, Definition]:
    """Load the recorded node definitions."""
    return json.loads(DEFINITIONS.read_text("utf-8"))


def reduced(info: dict[str, Any]) -> Definition:
    """Reduce an entry of ComfyUI's /object_info to what workflows depend on."""
    inputs = {}
    for needed in ("required", "optional"):
        for key, given in info["input"].get(needed, {}).items():
            inputs[key] = _reduced_input(given) | {"required": needed == "required"}
    labelled = zip(info["output"], info["output_name"], strict=True)
    outputs = [[str(kind), label] for kind, label in labelled]
    return {"inputs": inputs, "outputs": outputs}


def _reduced_input(given: list[Any]) -> dict[str, Any]:
    """Type, choices, default and bounds of an input, for old and new style nodes."""
    kind, options = given[0], given[1] if len(given) > 1 else {}
    if isinstance(kind, list):
        kind, options = "COMBO", options | {"options": kind}
    kept = {key: options[key] for key in ("default", "min", "max", "options") if key in options}
    if options.get("image_upload") or kept.get("options") == []:
        kept.pop("options", None)  # a list of the user's files
    if "control_after_generate" in options:
        kept["control_after_generate"] = options["control_after_generate"]
    return {"type": kind} | kept


class Node:
    """A node of a graph; node["NAME"] is one of its outputs, to be passed as an input."""

    def __init__(
        self,
        number: int,
        kind: str,
        definition: Definition,
        given: dict[str, Any],
        title: str | None,
        size: tuple[int, int] | None,
    ) -> None:
        unknown = set(given) - set(definition["inputs"])
        if unknown:
            raise ValueError(f"{kind} has no input {', '.join(sorted(unknown))}")
        self.number, self.kind, self.definition = number, kind, definition
        self.title, self.given_size = title, size
        self.wires: dict[str, Wire] = {
            key: value for key, value in given.items() if isinstance(value, tuple)
        }
        self.values = {key: value for key, value in given.items() if key not in self.wires}

    def __getitem__(self, name: str) -> "Wire":
        labels = [label for _, label in self.definition["outputs"]]
        return self, labels.index(name)

    def sockets(self) -> list[tuple[str, dict[str, Any]]]:
        """[(name, definition)] of the inputs that take a wire, in order."""
        inputs = self.definition["inputs"].items()
        return [(k, d) for k, d in inputs if d["type"] not in WIDGETS or k in self.wires]

    def widgets(self) -> list[tuple[str | None, Any]]:
        """[(name, value)] of all widgets in ComfyUI's order; those its page adds are unnamed."""
        widgets: list[tuple[str | None, Any]] = []
        for key, d in self.definition["inputs"].items():
            if d["type"] not in WIDGETS:
                continue
            widgets.append((key, self.values.get(key, self._default(d))))
            if d.get("control_after_generate", key in ("seed", "noise_seed")):
                widgets.append((None, "fixed"))
            if self.kind == "LoadImage" and key == "image":
                widgets.append((None, "image"))
        return widgets

    @staticmethod
    def _default(definition: dict[str, Any]) -> Any:
        if "default" in definition:
            return definition["default"]
        return definition["options"][0] if definition.get("options") else ""

    @property
    def height(self) -> int:
        large = [k for k, v in self.widgets() if k in MULTILINE or "\n" in str(v)]
        slots = max(len(self.sockets()), len(self.definition["outputs"]))
        height = 16 + slots * SLOT + len(self.widgets()) * WIDGET + len(large) * TEXT
        return height + (PICTURE if self.kind in WITH_PICTURE else 0)

    @property
    def size(self) -> list[int]:
        return list(self.given_size or (COLUMN, self.height))


Wire = tuple[Node, int]
"""An output: (node, slot)."""


class Graph:
    """A workflow under construction: call it to add a node."""

    def __init__(self, definitions: dict[str, Definition]) -> None:
        self.definitions = definitions
        self.nodes: list[Node] = []
        self.text: str | None = None

    def __call__(
        self,
        kind: str,
        /,
        title: str | None = None,
        size: tuple[int, int] | None = None,
        **given: Any,
    ) -> Node:
        """Add a node; inputs are values, or outputs of other nodes."""
        node = Node(len(self.nodes) + 1, kind, self.definitions[kind], given, title, size)
        self.nodes.append(node)
        return node

    def note(self, text: str) -> None:
        """Set the text of the note in the first column."""
        self.text = text

    def _distance(self, node: Node) -> int:
        """Length of the longest path from a node to an end of the graph."""
        fed = [n for n in self.nodes if any(source is node for source, _ in n.wires.values())]
        return 1 + max(map(self._distance, fed), default=-1)

    def _places(self) -> dict[int, tuple[int, int]]:
        """{number: (x, y)}: ends in the last column, other nodes as close to them as wires allow.

        A node is level with the node that feeds its first wire, or below the previous node of its
        column. The first column is for the note.
        """
        ends: dict[int, int] = {}
        places: dict[int, tuple[int, int]] = {}
        distances = {node.number: self._distance(node) for node in self.nodes}
        for node in self.nodes:
            column = 1 + max(distances.values()) - distances[node.number]
            wires = [node.wires[key][0] for key, _ in node.sockets() if key in node.wires]
            beside = places[wires[0].number][1] if wires else 0
            top = max(ends.get(column, 0), beside)
            places[node.number] = (column * (COLUMN + GAP), top)
            ends[column] = top + TITLE + node.size[1] + GAP
        return places

    def _links(self) -> list[list[Any]]:
        """[number, from, slot, to, slot, type] of every wire."""
        links: list[list[Any]] = []
        for node in self.nodes:
            for slot, (key, _) in enumerate(node.sockets()):
                if key in node.wires:
                    source, output = node.wires[key]
                    kind = source.definition["outputs"][output][0]
                    links.append([len(links) + 1, source.number, output, node.number, slot, kind])
        return links

    def workflow(self) -> dict[str, Any]:
        """The workflow as ComfyUI saves it, in format 0.4."""
        links, places = self._links(), self._places()
        nodes = [self._entry(node, links, places[node.number]) for node in self.nodes]
        nodes.append(self._note_entry(len(nodes) + 1))
        return {
            "last_node_id": len(nodes),
            "last_link_id": len(links),
            "nodes": nodes,
            "links": links,
            "groups": [],
            "config": {},
            "extra": {"ds": {"scale": 0.6, "offset": [150, 210]}},
            "version": 0.4,
        }

    def _entry(self, node: Node, links: list[list[Any]], place: tuple[int, int]) -> dict[str, Any]:
        into = {link[4]: link[0] for link in links if link[3] == node.number}
        inputs: list[dict[str, Any]] = []
        for slot, (key, definition) in enumerate(node.sockets()):
            inputs.append({"name": key, "type": definition["type"], "link": into.get(slot)})
            if definition["type"] in WIDGETS:
                inputs[-1]["widget"] = {"name": key}
            elif not definition["required"]:
                inputs[-1]["shape"] = 7
        outputs = []
        for slot, (kind, label) in enumerate(node.definition["outputs"]):
            out = [link[0] for link in links if link[1] == node.number and link[2] == slot]
            outputs.append({"name": label, "type": kind, "links": out or None, "slot_index": slot})
        entry = {
            "id": node.number,
            "type": node.kind,
            "pos": list(place),
            "size": node.size,
            "flags": {},
            "order": node.number - 1,
            "mode": 0,
            "inputs": inputs,
            "outputs": outputs,
            "properties": {"Node name for S&R": node.kind},
            "widgets_values": [value for _, value in node.widgets()],
        }
        return entry | ({"title": node.title} if node.title else {})

    def _note_entry(self, number: int) -> dict[str, Any]:
        return {
            "id": number,
            "type": "MarkdownNote",
            "title": "Read me",
            "pos": [0, 0],
            "size": [COLUMN, 360],
            "flags": {},
            "order": 0,
            "mode": 0,
            "inputs": [],
            "outputs": [],
            "properties": {},
            "widgets_values": [self.text],
            "color": "#432",
            "bgcolor": "#653",
        }

    def prompt(self) -> dict[str, Any]:
        """The prompt for POST /prompt."""
        return {
            str(node.number): {
                "class_type": node.kind,
                "inputs": {k: v for k, v in node.widgets() if k and k not in node.wires}
                | {k: [str(source.number), slot] for k, (source, slot) in node.wires.items()},
            }
            for node in self.nodes
        }
