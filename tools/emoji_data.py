"""The pictures that the bundled emoji model is trained on: fetched with npm, prepared once."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save

from s4s_core.atomic import write_atomic

PACKAGE, VERSION = "emoji-datasource-google", "16.0.0"
SIZE, MARGIN = 32, 1

ANIMAL_FACES = """
    mouse cow tiger rabbit cat horse monkey_face dog pig hamster wolf polar_bear bear panda_face
    lion_face unicorn_face fox_face giraffe_face zebra_face raccoon koala moose frog dragon_face
    gorilla
"""
# Classes by subcategories of the package's emoji.json (and the short names above). Skin tones,
# families, most objects and all lettered symbols are left out.
CLASSES = {
    "happy face": "face-smiling face-affection face-tongue face-glasses face-hat face-hand",
    "other face": "face-concerned face-neutral-skeptical face-sleepy face-unwell face-negative",
    "animal face": "cat-face monkey-face",
    "animal": "animal-mammal animal-reptile",
    "bird": "animal-bird",
    "sea life": "animal-marine",
    "insect": "animal-bug",
    "flower": "plant-flower",
    "plant": "plant-other",
    "fruit": "food-fruit",
    "vegetable": "food-vegetable",
    "meal": "food-asian food-prepared",
    "sweets": "food-sweet",
    "drink": "drink",
    "person": "person person-role person-gesture person-fantasy",
    "hand": "hands hand-prop hand-single-finger hand-fingers-closed hand-fingers-open "
    "hand-fingers-partial",
    "building": "place-building place-religious",
    "vehicle": "transport-ground transport-air transport-water",
    "sky": "sky-&-weather",
    "sport": "sport",
    "clothing": "clothing",
    "heart": "heart",
    "clock": "time",
    "flag": "country-flag subdivision-flag",
}
NAMES = list(CLASSES)
UNMIRRORED = ("clock", "flag")


def cache_folder():
    """The user's cache folder for the emoji images."""
    if os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "s4s" / "emoji"


def fetch(folder):
    """The package's tarball, fetched with npm unless it is there already."""
    archive = folder / f"{PACKAGE}-{VERSION}.tgz"
    if not archive.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise SystemExit(
                f"npm is needed to fetch {PACKAGE}: install Node.js, "
                f"or put {archive.name} into {folder}."
            )
        print(f"Fetching {PACKAGE} {VERSION} with npm ...", flush=True)
        spec = f"{PACKAGE}@{VERSION}"
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            subprocess.run([npm, "pack", "--silent", spec], cwd=scratch, check=True)
            os.replace(next(Path(scratch).glob("*.tgz")), archive)
    return archive


def class_of(emoji):
    """The class of an entry of emoji.json, or None for what is left out."""
    if emoji["short_name"] in ANIMAL_FACES.split():
        return NAMES.index("animal face")
    subcategory = emoji["subcategory"].replace(" ", "-")
    for index, subcategories in enumerate(CLASSES.values()):
        if subcategory in subcategories.split():
            return index
    return None


def prepare(folder):
    """Pictures (uint8 [N, 3, 32, 32], on white) and labels [N], read from the package once."""
    folder.mkdir(parents=True, exist_ok=True)
    cached = folder / f"emoji-{SIZE}.safetensors"
    recipe = json.dumps([VERSION, SIZE, MARGIN, CLASSES, ANIMAL_FACES])
    if cached.exists():
        with safe_open(cached, "pt") as file:
            if (file.metadata() or {}).get("recipe") == recipe:
                return file.get_tensor("pictures"), file.get_tensor("labels")
    pictures, labels = [], []
    with tarfile.open(fetch(folder)) as archive:
        entries = json.load(archive.extractfile("package/emoji.json"))
        wanted = {
            f"package/img/google/64/{entry['image']}": class_of(entry)
            for entry in entries
            if entry["has_img_google"] and class_of(entry) is not None
        }
        for name in sorted(wanted):
            pictures.append(picture_of(archive.extractfile(name)))
            labels.append(wanted[name])
    pictures, labels = torch.from_numpy(np.stack(pictures)), torch.tensor(labels)
    write_safetensors(cached, {"pictures": pictures, "labels": labels}, {"recipe": recipe})
    return pictures, labels


def picture_of(file):
    """A PNG on white, shrunk, within a white margin: uint8 [3, 32, 32]."""
    picture = Image.open(file).convert("RGBA")
    canvas = Image.new("RGBA", picture.size, "white")
    canvas.alpha_composite(picture)
    inner = canvas.convert("RGB").resize((SIZE - 2 * MARGIN,) * 2, Image.Resampling.LANCZOS)
    framed = Image.new("RGB", (SIZE, SIZE), "white")
    framed.paste(inner, (MARGIN, MARGIN))
    return np.asarray(framed).transpose(2, 0, 1)


def write_safetensors(path, tensors, metadata):
    """Write a file whole or not at all; its header is sorted, so equal content is equal bytes."""
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, len(header).to_bytes(8, "little") + header + data[end:])
