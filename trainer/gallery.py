"""Pictures of a job: teacher, best classical solver and S4S on the same noise, while it trains."""

import base64
import io
import time

import torch
from PIL import Image

from s4s_core import sample
from s4s_core.candidates import candidates, rank
from s4s_core.teacher import draw_pairs

from .comparison import FRESH_SEED
from .pictures import can_show, grid, if_memory_allows, pictures, save_png, tiles, to_pixels

COUNT, BATCH = 6, 2
RIVALS = (("ipndm", 3), ("dpmpp", 2), ("unipc-bh2", 3))
"""Classical solvers that a picture is chosen from before the scores are known."""

PAUSE, SHARE = 5.0, 20
"""Grids are at least so many seconds apart, and so many times what the last S4S row took."""

THUMBNAIL, LARGEST, QUALITIES = 256, 30_000, (85, 70, 50, 25)
"""Side of a thumbnail, and its bytes: it stands in a header of bounded size, twice."""


class Gallery:
    """Writes grids into a folder, numbered; writes none for a model that shows nothing."""

    def __init__(self, model, teacher, folder):
        self.model, self.folder = model, folder
        self.pairs, self.rivals, self.tiles = None, {}, {}
        self.due, self.cost, self.last = 0.0, 0.0, None
        self.teacher, self.ending = teacher, teacher.ending
        self.able = True

    def show(self, event):
        """Save a grid of an event's table, if it is new and the last grid is a while ago."""
        if time.monotonic() < self.due or event.table == self.last:
            return
        self.last = event.table
        self._guarded(lambda: self._save({event.nfe: event.table}, {}))
        self.due = time.monotonic() + max(PAUSE, SHARE * self.cost)

    def finish(self, result):
        """Save the grid of all NFEs; the thumbnail of the last one as a data URI, or None."""
        tables = {nfe: result.pack[nfe] for nfe in result.pack.nfes}
        return self._guarded(lambda: self._save(tables, result.scores))

    @torch.inference_mode()
    def _save(self, tables, scores):
        """Save a grid and return the thumbnail of its last row."""
        if self.pairs is None:
            self.able = can_show(self.model)
            if not self.able:
                return None
            self.pairs = draw_pairs(self.model, self.teacher, COUNT, FRESH_SEED, BATCH)
        rows = {f"teacher, {self.teacher.nfe} NFE": self._still(self.teacher)}
        for nfe, table in tables.items():
            score = scores.get(str(nfe), {})
            rival = self._rival(nfe, score.get("classical_name"))
            rows[_label(rival.label, nfe, score.get("classical"))] = self._still(rival.table)
            began = time.monotonic()
            ours = self._drawn(table)
            self.cost = time.monotonic() - began
            rows[_label("S4S", nfe, score.get("rmse"))] = tiles(ours)
        self.folder.mkdir(exist_ok=True)
        number = 1 + max((int(p.stem) for p in self.folder.glob("[0-9]*.png")), default=0)
        save_png(self.folder / f"{number:04d}.png", grid(rows))
        return thumbnail(ours)

    def _still(self, table):
        """The tiles of a table that does not change, drawn once."""
        if table not in self.tiles:
            known = table is self.teacher
            drawn = pictures(self.model, self.pairs.target) if known else self._drawn(table)
            self.tiles[table] = tiles(drawn)
        return self.tiles[table]

    def _rival(self, nfe, label):
        """The classical solver of that label, or else the best of a few on these pairs."""
        if label is not None:
            for candidate in candidates(self.model, nfe, self.ending):
                if candidate.label == label:
                    return candidate
        if nfe not in self.rivals:
            found = candidates(self.model, nfe, self.ending, RIVALS)
            ranked = rank(self.model.denoise, found, self.pairs[:BATCH], BATCH, keep=1)
            self.rivals[nfe] = ranked[0][1]
        return self.rivals[nfe]

    def _drawn(self, table):
        parts = self.pairs.batches(BATCH)
        results = [sample(self.model.denoise, p.x, table, p.cond) for p in parts]
        return pictures(self.model, torch.cat(results))

    def _guarded(self, function):
        """What the function returns; without memory for pictures, training goes on without them."""
        if not self.able:
            return None
        found = if_memory_allows(function)
        self.able = found is not None
        return found


def _label(name, nfe, error):
    return f"{name}, {nfe} NFE" + ("" if error is None else f": {error:.3f}")


def thumbnail(pictures):
    """A data URI of the first four pictures in a square."""
    sheet = Image.new("RGB", (THUMBNAIL, THUMBNAIL), "white")
    half = THUMBNAIL // 2
    for number, pixels in enumerate(to_pixels(pictures[:4])):
        tile = Image.fromarray(pixels.copy())
        smooth = max(tile.size) > half
        how = Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST
        scale = half / max(tile.size)
        tile = tile.resize([max(1, round(side * scale)) for side in tile.size], how)
        sheet.paste(tile, (number % 2 * half, number // 2 * half))
    for quality in QUALITIES:
        data = io.BytesIO()
        sheet.save(data, format="JPEG", quality=quality)
        if data.tell() <= LARGEST:
            break
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
