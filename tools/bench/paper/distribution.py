"""Fréchet distances of a cell's pictures to the teacher's and to the training pictures."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from s4s_core import sample
from s4s_core.atomic import write_atomic
from s4s_core.errors import S4SError
from s4s_core.teacher import default_teacher, draw_noise

from . import frechet
from .cells import Cell, weights_digest

REFERENCE_SEED, SAMPLE_SEED = 870_000_001, 870_000_002
BATCH = 64


class Distribution:
    """The feature network, and moments that are kept next to the cells' results."""

    def __init__(self, lab):
        self.lab, self.network = lab, frechet.load_network()

    def measure(self, cell):
        """Distances of cell.frechet pictures from noise that the reference does not share."""
        model, table = self.lab.model(cell.model, cell.cfg), self._table(cell)
        ours = self._moments(cell, model, table, SAMPLE_SEED)
        teacher = default_teacher(model)
        reference = self._moments(cell, model, teacher, REFERENCE_SEED)
        found = {"to_teacher": frechet.distance(ours, reference), "calls": 0}
        if self.lab.images:
            found["to_images"] = frechet.distance(ours, self._training_pictures())
        return found

    def _table(self, cell):
        if cell.method == "teacher":
            return default_teacher(self.lab.model(cell.model, cell.cfg))
        return self.lab.table(Cell(**{**vars(cell), "frechet": 0}))

    def _moments(self, cell, model, table, seed):
        """Moments of the pictures of a table, rendered once."""
        made = f"{cell.model}-{weights_digest()[:12]}-{cell.cfg:g}-{table.digest[:20]}"
        path = self.lab.shelf.folder / f"features-{made}-{cell.frechet}-{seed}.safetensors"
        try:
            return frechet.Moments(**load_file(path))
        except (OSError, SafetensorError, TypeError):
            x, cond = draw_noise(model, cell.frechet, seed)
            found = frechet.moments(self._render(model, table, x, cond), self.network)
            write_atomic(path, save({k: v.contiguous() for k, v in vars(found).items()}))
            return found

    def _render(self, model, table, x, cond):
        parts = []
        with torch.inference_mode():
            for start in range(0, len(x), BATCH):
                self.lab.check_time()
                rows = slice(start, start + BATCH)
                parts.append(sample(model.denoise, x[rows], table, cond[rows]))
        return torch.cat(parts)

    def _training_pictures(self):
        """Moments of the pictures in --images, as tools/emoji_data.py prepares them."""
        path = Path(self.lab.images)
        try:
            pictures = load_file(path)["pictures"]
        except (OSError, SafetensorError, KeyError) as error:
            raise S4SError(
                f"{path} is not the file of training pictures that tools/train_demo.py prepares "
                f"({error}): name that file, or leave --images out."
            ) from None
        return frechet.moments(pictures.float() / 127.5 - 1, self.network)
