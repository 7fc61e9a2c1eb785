"""Training pictures of the bundled emoji model: fetched with npm and prepared once."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

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
# Classes by subcategory in the package's emoji.json (plus the short names above). Skin tones,
# families, most objects and all symbols with letters are left out.
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


def cache_folder() -> Path:
    """Return the user's cache folder for the emoji images."""
    if os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "s4s" / "emoji"


def fetch(folder: Path) -> Path:
    """Return the package's tarball; fetch it with npm if it is not there."""
    archive = folder / f"{PACKAGE}-{VERSION}.tgz"
    if not archive.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise SystemExit(
                f"Fetching {PACKAGE} needs npm. Install Node.js, "
                f"or put {archive.name} into {folder}."
            )
        print(f"Fetching {PACKAGE} {VERSION} with npm ...", flush=True)
        spec = f"{PACKAGE}@{VERSION}"
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            subprocess.run([npm, "pack", "--silent", spec], cwd=scratch, check=True)
            os.replace(next(Path(scratch).glob("*.tgz")), archive)
    return archive


def class_of(emoji: dict[str, Any]) -> int | None:
    """Return the class of an entry of emoji.json, or None if it is left out."""
    if emoji["short_name"] in ANIMAL_FACES.split():
        return NAMES.index("animal face")
    subcategory = emoji["subcategory"].replace(" ", "-")
    for index, subcategories in enumerate(CLASSES.values()):
        if subcategory in subcategories.split():
            return index
    return None


def prepare(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures (uint8 [N, 3, 32, 32], on white) and labels [N]; cached in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    cached = folder / f"emoji-{SIZE}.safetensors"
    recipe = json.dumps([VERSION, SIZE, MARGIN, CLASSES, ANIMAL_FACES])
    if cached.exists():
        with safe_open(cached, "pt") as file:
            if (file.metadata() or {}).get("recipe") == recipe:
                return file.get_tensor("pictures"), file.get_tensor("labels")
    arrays, classes = [], []
    with tarfile.open(fetch(folder)) as archive:
        entries = json.load(_member(archive, "package/emoji.json"))
        wanted = {
            f"package/img/google/64/{entry['image']}": class_of(entry)
            for entry in entries
            if entry["has_img_google"] and class_of(entry) is not None
        }
        for name in sorted(wanted):
            arrays.append(picture_of(_member(archive, name)))
            classes.append(wanted[name])
    pictures, labels = torch.from_numpy(np.stack(arrays)), torch.tensor(classes)
    write_safetensors(cached, {"pictures": pictures, "labels": labels}, {"recipe": recipe})
    return pictures, labels


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)
    if file is None:
        raise SystemExit(f"{name} in {archive.name!r} is not a file.")
    return file


def picture_of(file: IO[bytes]) -> np.ndarray:
    """Read a PNG and shrink it onto white with a white margin: uint8 [3, 32, 32]."""
    picture: Image.Image = Image.open(file).convert("RGBA")
    canvas = Image.new("RGBA", picture.size, "white")
    canvas.alpha_composite(picture)
    inner = canvas.convert("RGB").resize((SIZE - 2 * MARGIN,) * 2, Image.Resampling.LANCZOS)
    framed = Image.new("RGB", (SIZE, SIZE), "white")
    framed.paste(inner, (MARGIN, MARGIN))
    return np.asarray(framed).transpose(2, 0, 1)


def write_safetensors(
    path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]
) -> None:
    """Write a file atomically; its header is sorted, so that equal content gives equal bytes."""
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, len(header).to_bytes(8, "little") + header + data[end:])
