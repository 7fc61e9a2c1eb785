"""Makes example_workflows/*.json from the short declarations below.

    python tools/example_workflows.py                # writes the workflows
    python tools/example_workflows.py --record URL   # first asks a running ComfyUI for its nodes

What the nodes look like is in tools/node_definitions.json, recorded from a ComfyUI with this pack
in it, so that the workflows can be made and checked without one. Positions are worked out.
"""

import argparse
import json
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEFINITIONS = ROOT / "tools" / "node_definitions.json"
FOLDER = ROOT / "example_workflows"

WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
FRONT_END_ONLY = ("MarkdownNote",)
SHOWING = ("PreviewImage", "SaveImage", "LoadImage", "PreviewAny")
MULTILINE = ("text", "prompts", "notes")
OUR_PREFIX = "S4S"
COLUMN, GAP, TITLE, SLOT, WIDGET, TEXT, PICTURE = 330, 50, 30, 20, 24, 120, 260

# ---------------------------------------------------------------- declarations

GUIDE = "\n\nMore: the *S4S* tab in the sidebar, and the help (?) of each node."
PROMPT = "a lighthouse on a cliff at dawn, oil painting, warm light"
AVOID = "blurry, low quality, text, watermark"


def demo_quick_start(graph):
    """The bundled model on any CPU: S4S at 5 steps between stock samplers at 5 and at 20."""
    demo = graph("S4SDemoModel", category="happy face", kind="EDM", batch_size=4)
    solver = graph("S4SLoadSolver", solver="demo.safetensors")
    applied = graph("S4SApplySolver", model=demo["model"], solver=solver["solver"])
    for title, model, steps, sampler, scheduler in (
        ("S4S: 5 steps", applied["MODEL"], 5, "s4s", "s4s"),
        ("Stock: 5 steps", demo["model"], 5, "euler", "karras"),
        ("The goal: 20 steps", demo["model"], 20, "uni_pc_bh2", "karras"),
    ):
        wires = {name: demo[name] for name in ("positive", "negative")}
        names = {"sampler": sampler, "scheduler": scheduler, "title": title}
        drawn = sampled(graph, model, wires, demo["latent"], 2.0, steps, seed=7, **names)
        shown(graph, drawn, demo["vae"], enlarge=256, title=title)
    graph.note(
        "## A first picture\nPress *Run*. The small model that comes with S4S draws four emoji "
        "three times from the same noise: with 5 steps of a learned solver, with 5 steps of a "
        "stock sampler, and with the 20 steps that both try to reach.\n\nTo use a solver: **Load "
        "Solver → Apply Solver → KSampler** with sampler `s4s` and scheduler `s4s`." + GUIDE
    )


def text_to_image(checkpoint, solver, size, cfg, family):
    """Text to image with a checkpoint, through the stock KSampler."""

    def declare(graph):
        loaded, applied = with_solver(graph, checkpoint, solver)
        latent = graph("EmptyLatentImage", width=size, height=size, batch_size=1)
        drawn = sampled(graph, applied, encoded(graph, loaded), latent["LATENT"], cfg, 6)
        saved(graph, drawn, loaded["VAE"], f"S4S_{family}")
        graph.note(
            f"## {family} in 6 steps\nChoose your checkpoint, and in **Load Solver** the solver "
            "that was trained for it. You have none yet? Open the workflow *train-your-checkpoint*"
            ": it makes one in a single run.\n\n`steps` must be a number that the solver holds, "
            f"and `cfg` should be the one it was trained for (here {cfg:g})." + GUIDE
        )

    return declare


def image_to_image(graph):
    """A part of the noise, then the last steps of a solver."""
    loaded, applied = with_solver(graph, "v1-5-pruned-emaonly-fp16.safetensors", "sd15.safetensors")
    picture = graph("LoadImage", image="example.png")
    latent = graph("VAEEncode", pixels=picture["IMAGE"], vae=loaded["VAE"])
    wires = encoded(graph, loaded)
    drawn = sampled(graph, applied, wires, latent["LATENT"], 7.0, 6, denoise=0.6)
    saved(graph, drawn, loaded["VAE"], "S4S_img2img")
    graph.note(
        "## Image to image\nThe stock way: your picture as latent, and `denoise` below 1. The "
        "solver starts in the middle of its table, where the noise is as strong as you asked for; "
        "`steps` are the steps that are made." + GUIDE
    )


def inpaint(graph):
    """A masked part of a picture made anew."""
    loaded, applied = with_solver(graph, "v1-5-pruned-emaonly-fp16.safetensors", "sd15.safetensors")
    picture = graph("LoadImage", image="example.png")
    latent = graph("VAEEncode", pixels=picture["IMAGE"], vae=loaded["VAE"])
    masked = graph("SetLatentNoiseMask", samples=latent["LATENT"], mask=picture["MASK"])
    wires = encoded(graph, loaded)
    drawn = sampled(graph, applied, wires, masked["LATENT"], 7.0, 6, denoise=0.8)
    saved(graph, drawn, loaded["VAE"], "S4S_inpaint")
    graph.note(
        "## Inpainting\nRight-click the picture, *Open in MaskEditor*, and paint over what shall "
        "change. The rest of the latent stays exactly as it was." + GUIDE
    )


def flux(graph):
    """A flow model with a guider: the solver as SAMPLER and SIGMAS."""
    model = graph("UNETLoader", unet_name="flux1-dev.safetensors", weight_dtype="default")
    clip = graph(
        "DualCLIPLoader",
        clip_name1="clip_l.safetensors",
        clip_name2="t5xxl_fp16.safetensors",
        type="flux",
    )
    vae = graph("VAELoader", vae_name="ae.safetensors")
    text = graph("CLIPTextEncode", clip=clip["CLIP"], text=PROMPT)
    guided = graph("FluxGuidance", conditioning=text["CONDITIONING"], guidance=3.5)
    guider = graph("BasicGuider", model=model["MODEL"], conditioning=guided["CONDITIONING"])
    solver = graph("S4SLoadSolver", solver="flux-dev.safetensors")
    sampler = graph("S4SSampler", solver=solver["solver"], steps=6, denoise=1.0)
    noise = graph("RandomNoise", noise_seed=0)
    latent = graph("EmptySD3LatentImage", width=1024, height=1024, batch_size=1)
    drawn = graph(
        "SamplerCustomAdvanced",
        noise=noise["NOISE"],
        guider=guider["GUIDER"],
        sampler=sampler["sampler"],
        sigmas=sampler["sigmas"],
        latent_image=latent["LATENT"],
    )
    saved(graph, drawn["output"], vae["VAE"], "S4S_flux")
    graph.note(
        "## Flux in 6 steps\n**Sampler (S4S)** gives the sampler and the noise levels that belong "
        "together: wire both. SD3 and other flow models work alike, and so does SamplerCustom."
        + GUIDE
    )


def train_demo(graph):
    """Training in the graph, on the bundled model: minutes on a CPU."""
    demo = graph("S4SDemoModel", category="happy face", kind="EDM", batch_size=4)
    graph_inputs = {name: demo[name] for name in ("model", "positive", "negative", "vae", "clip")}
    trained = graph(
        "S4STrainSolver",
        **graph_inputs,
        latent_image=demo["latent"],
        cfg=2.0,
        nfes="5",
        effort="quick",
        prompts="animal\nbird\nflower",
        size=(COLUMN, 720),
    )
    after_training(graph, trained, "my demo solver")
    graph.note(
        "## Learn a solver here\nPress *Run*: in a few minutes the small model that comes with S4S "
        "has a solver for 5 steps. Progress, time left and pictures show at the node and in the "
        "*S4S* tab. Cancel at any time; run again and it goes on from there."
    )


def train_checkpoint(graph):
    """Training in the graph, for a checkpoint as it is wired."""
    loaded = graph("CheckpointLoaderSimple", ckpt_name="v1-5-pruned-emaonly-fp16.safetensors")
    latent = graph("EmptyLatentImage", width=512, height=512, batch_size=1)
    trained = graph(
        "S4STrainSolver",
        model=loaded["MODEL"],
        **encoded(graph, loaded),
        latent_image=latent["LATENT"],
        vae=loaded["VAE"],
        clip=loaded["CLIP"],
        cfg=7.0,
        nfes="5,6,8",
        effort="normal",
        prompts="a portrait of an old fisherman\na busy street in the rain at night\n"
        "a bowl of ramen, studio photo\na castle in the clouds, concept art",
    )
    after_training(graph, trained, "sd15")
    graph.note(
        "## A solver for your checkpoint\nWire what you use: LoRAs, ControlNets and patches "
        "between the checkpoint and **Train Solver** are learned with. Set the size and `cfg` "
        "that you work with, and prompts of the kind that you write. Needs no more "
        "memory than sampling."
        "\n\nThe file lands in `models/s4s_solvers` and in the *S4S* tab."
    )


def compare(graph):
    """Teacher, stock samplers and solver, from the same noise."""
    demo = graph("S4SDemoModel", category="fruit", kind="EDM", batch_size=4)
    solver = graph("S4SLoadSolver", solver="demo.safetensors")
    sheet = graph(
        "S4SCompare",
        **{name: demo[name] for name in ("model", "positive", "negative", "vae")},
        solver=solver["solver"],
        latent_image=demo["latent"],
        seed=1,
        steps=5,
        cfg=2.0,
        samplers="euler, dpmpp_2m, uni_pc_bh2, ipndm",
        scheduler="karras",
    )
    graph("PreviewImage", images=sheet["comparison"], size=(520, 640))
    graph("PreviewAny", source=sheet["table"], size=(520, 230))
    graph.note(
        "## Which sampler is nearest?\nAll rows start from the same noise and make as many model "
        "calls, except for the teacher. Put your own checkpoint in place of the Demo Model, and "
        "your solver into **Load Solver**." + GUIDE
    )


WORKFLOWS = {
    "demo-quick-start": demo_quick_start,
    "text-to-image-sd15": text_to_image(
        "v1-5-pruned-emaonly-fp16.safetensors", "sd15.safetensors", 512, 7.0, "SD1.5"
    ),
    "text-to-image-sdxl": text_to_image(
        "sd_xl_base_1.0.safetensors", "sdxl.safetensors", 1024, 6.0, "SDXL"
    ),
    "image-to-image": image_to_image,
    "inpaint": inpaint,
    "flux": flux,
    "train-in-the-graph": train_demo,
    "train-your-checkpoint": train_checkpoint,
    "compare": compare,
}
NEED_NO_DOWNLOAD = ("demo-quick-start", "train-in-the-graph", "compare")


# ---------------------------------------------------------------- pieces that they share


def with_solver(graph, checkpoint, solver):
    """(checkpoint loader, MODEL with a solver on it)."""
    loaded = graph("CheckpointLoaderSimple", ckpt_name=checkpoint)
    file = graph("S4SLoadSolver", solver=solver)
    applied = graph("S4SApplySolver", model=loaded["MODEL"], solver=file["solver"])
    return loaded, applied["MODEL"]


def encoded(graph, loaded):
    """Both prompts, as inputs of a sampling node."""
    texts = {"positive": PROMPT, "negative": AVOID}
    return {
        name: graph("CLIPTextEncode", clip=loaded["CLIP"], text=text, title=name.title())[
            "CONDITIONING"
        ]
        for name, text in texts.items()
    }


def sampled(
    graph,
    model,
    wires,
    latent,
    cfg,
    steps,
    sampler="s4s",
    scheduler="s4s",
    denoise=1.0,
    seed=1,
    title=None,
):
    """The LATENT of a stock KSampler."""
    settings = {"seed": seed, "steps": steps, "cfg": cfg, "denoise": denoise}
    names = {"sampler_name": sampler, "scheduler": scheduler}
    wires = wires | {"model": model, "latent_image": latent}
    return graph("KSampler", title=title, **wires, **settings, **names)["LATENT"]


def shown(graph, latent, vae, enlarge, title=None):
    """Small pictures, enlarged without smoothing."""
    image = graph("VAEDecode", samples=latent, vae=vae)
    size = {"width": enlarge, "height": enlarge, "crop": "disabled"}
    large = graph("ImageScale", image=image["IMAGE"], upscale_method="nearest-exact", **size)
    graph("PreviewImage", images=large["IMAGE"], title=title)


def saved(graph, latent, vae, prefix):
    image = graph("VAEDecode", samples=latent, vae=vae)
    graph("SaveImage", images=image["IMAGE"], filename_prefix=prefix)


def after_training(graph, trained, name):
    graph("S4SSaveSolver", solver=trained["solver"], filename=name)
    graph("PreviewImage", images=trained["preview"], size=(420, 420))
    graph("PreviewAny", source=trained["report"], size=(420, 260))


# ---------------------------------------------------------------- node definitions


def reduced(info):
    """Of one entry of ComfyUI's /object_info, what a workflow depends on."""
    inputs = {}
    for needed in ("required", "optional"):
        for key, given in info["input"].get(needed, {}).items():
            inputs[key] = reduced_input(given) | {"required": needed == "required"}
    labelled = zip(info["output"], info["output_name"], strict=True)
    outputs = [[str(kind), label] for kind, label in labelled]
    return {"inputs": inputs, "outputs": outputs}


def reduced_input(given):
    """Type, choices, default and bounds of an input, of either generation of node."""
    kind, options = given[0], given[1] if len(given) > 1 else {}
    if isinstance(kind, list):
        kind, options = "COMBO", options | {"options": kind}
    kept = {key: options[key] for key in ("default", "min", "max", "options") if key in options}
    if options.get("image_upload") or kept.get("options") == []:
        kept.pop("options", None)  # a list of somebody's files
    if "control_after_generate" in options:
        kept["control_after_generate"] = options["control_after_generate"]
    return {"type": kind} | kept


FILES = ("ckpt_name", "unet_name", "clip_name1", "clip_name2", "vae_name", "solver", "image")


def record(object_info):
    """Definitions of all nodes that the workflows use and of all of ours."""
    known = {name: reduced(info) for name, info in object_info.items()}
    used = {node.kind for name in WORKFLOWS for node in build(name, known).nodes}
    ours = {name for name in known if name.startswith(OUR_PREFIX)}
    found = {name: known[name] for name in sorted(used | ours)}
    for definition in found.values():
        for key in FILES:
            definition["inputs"].get(key, {}).pop("options", None)
    return found


# ---------------------------------------------------------------- from declarations to workflows


class Node:
    """A node of a graph in the making; node["NAME"] is one of its outputs."""

    def __init__(self, number, kind, definition, given, title, size):
        unknown = set(given) - set(definition["inputs"])
        if unknown:
            raise ValueError(f"{kind} has no input {', '.join(sorted(unknown))}")
        self.number, self.kind, self.definition = number, kind, definition
        self.title, self.given_size = title, size
        self.wires = {key: value for key, value in given.items() if isinstance(value, tuple)}
        self.values = {key: value for key, value in given.items() if key not in self.wires}

    def __getitem__(self, name):
        labels = [label for _, label in self.definition["outputs"]]
        return self, labels.index(name)

    def sockets(self):
        """Inputs that are wires, in order."""
        inputs = self.definition["inputs"].items()
        return [(k, d) for k, d in inputs if d["type"] not in WIDGETS or k in self.wires]

    def widgets(self):
        """[(name, value)] of all widgets in ComfyUI's order, with those that its page adds."""
        found = []
        for key, d in self.definition["inputs"].items():
            if d["type"] not in WIDGETS:
                continue
            found.append((key, self.values.get(key, self.default(d))))
            if d.get("control_after_generate", key in ("seed", "noise_seed")):
                found.append((None, "fixed"))
            if self.kind == "LoadImage" and key == "image":
                found.append((None, "image"))
        return found

    @staticmethod
    def default(definition):
        if "default" in definition:
            return definition["default"]
        return definition["options"][0] if definition.get("options") else ""

    @property
    def height(self):
        large = [k for k, v in self.widgets() if k in MULTILINE or "\n" in str(v)]
        slots = max(len(self.sockets()), len(self.definition["outputs"]))
        height = 16 + slots * SLOT + len(self.widgets()) * WIDGET + len(large) * TEXT
        return height + (PICTURE if self.kind in SHOWING else 0)

    @property
    def size(self):
        return list(self.given_size or (COLUMN, self.height))


class Graph:
    """Collects nodes; `workflow()` is the file that ComfyUI opens."""

    def __init__(self, definitions):
        self.definitions, self.nodes, self.text = definitions, [], None

    def __call__(self, kind, /, title=None, size=None, **given):
        node = Node(len(self.nodes) + 1, kind, self.definitions[kind], given, title, size)
        self.nodes.append(node)
        return node

    def note(self, text):
        self.text = text

    def distance(self, node):
        """Nodes on the longest way from a node to an end of the graph."""
        fed = [n for n in self.nodes if any(source is node for source, _ in n.wires.values())]
        return 1 + max(map(self.distance, fed), default=-1)

    def places(self):
        """{number: (x, y)}: ends in the last column, all else as near to them as wires allow.

        A node stands beside what feeds its first wire, or below the last one of its column; the
        first column is the note's.
        """
        ends, places = {}, {}
        distances = {node.number: self.distance(node) for node in self.nodes}
        for node in self.nodes:
            column = 1 + max(distances.values()) - distances[node.number]
            wires = [node.wires[key][0] for key, _ in node.sockets() if key in node.wires]
            beside = places[wires[0].number][1] if wires else 0
            top = max(ends.get(column, 0), beside)
            places[node.number] = (column * (COLUMN + GAP), top)
            ends[column] = top + TITLE + node.size[1] + GAP
        return places

    def links(self):
        """[number, from, slot, to, slot, type] of all wires."""
        found = []
        for node in self.nodes:
            for slot, (key, _) in enumerate(node.sockets()):
                if key in node.wires:
                    source, output = node.wires[key]
                    kind = source.definition["outputs"][output][0]
                    found.append([len(found) + 1, source.number, output, node.number, slot, kind])
        return found

    def workflow(self):
        """The workflow as ComfyUI saves it, format 0.4."""
        links, places = self.links(), self.places()
        nodes = [self.entry(node, links, places[node.number]) for node in self.nodes]
        nodes.append(self.note_entry(len(nodes) + 1))
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

    def entry(self, node, links, place):
        into = {link[4]: link[0] for link in links if link[3] == node.number}
        inputs = []
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

    def note_entry(self, number):
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

    def prompt(self):
        """What POST /prompt takes."""
        return {
            str(node.number): {
                "class_type": node.kind,
                "inputs": {k: v for k, v in node.widgets() if k and k not in node.wires}
                | {k: [str(source.number), slot] for k, (source, slot) in node.wires.items()},
            }
            for node in self.nodes
        }


def definitions():
    return json.loads(DEFINITIONS.read_text("utf-8"))


def build(name, known=None):
    """The graph of a workflow by name."""
    graph = Graph(known or definitions())
    WORKFLOWS[name](graph)
    return graph


def as_text(value):
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", metavar="URL", help="address of a running ComfyUI")
    options = parser.parse_args()
    if options.record:
        with urllib.request.urlopen(f"{options.record.rstrip('/')}/object_info") as answer:
            DEFINITIONS.write_text(as_text(record(json.load(answer))), encoding="utf-8")
    for name in WORKFLOWS:
        (FOLDER / f"{name}.json").write_text(as_text(build(name).workflow()), encoding="utf-8")


if __name__ == "__main__":
    main()
