"""Sheets of pictures: the teacher, what artists would pick, the best classical solver and S4S."""

from pathlib import Path

import torch

from s4s_core import sample
from s4s_core.app.pictures import Row, save_png, sheet
from s4s_core.table import SolverTable
from s4s_core.teacher import TEACHER_NFE, draw_noise

from .cells import table_from
from .measuring import Lab
from .plans import Plan, Rows

COLUMNS = 8
PICTURE_SEED = 880_000_001
SHOWN = ("Euler", "DPM++ 2M Karras", "best classical", "S4S-GN")


def draw_sheets(plan: Plan, lab: Lab, folder: Path) -> list[Path]:
    """Draw one sheet for every CFG and NFE of the headline whose cells are finished."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for rows in plan.headlines:
        tables = _tables(lab, rows)
        if tables is not None:
            cell = rows["S4S-GN"][0]
            path = folder / f"pictures-{cell.model}-cfg{cell.cfg:g}-{cell.nfe}.png"
            save_png(path, sheet(_rendered(lab, cell.model, cell.cfg, tables)))
            drawn.append(path)
    return drawn


def _tables(lab: Lab, rows: Rows) -> dict[str, SolverTable] | None:
    """{title: table} of the rows to show, or None if one of them is not measured."""
    tables = {}
    for label in SHOWN:
        cell = rows[label][0]
        found = lab.store.load(cell)
        if found is None:
            return None
        name = f" ({found['name']})" if label == "best classical" else ""
        tables[f"{label[0].upper()}{label[1:]}{name}, {cell.nfe} calls"] = table_from(
            found["table"]
        )
    return tables


def _rendered(lab: Lab, name: str, cfg: float, tables: dict[str, SolverTable]) -> list[Row]:
    """Rows of pictures from the same noise, the teacher's first."""
    model = lab.model(name, cfg)
    x, cond = draw_noise(model, COLUMNS, PICTURE_SEED)
    every = {f"Teacher, {TEACHER_NFE} calls": lab.teacher(name, cfg), **tables}
    with torch.inference_mode():
        results = {title: sample(model.denoise, x, each, cond) for title, each in every.items()}
    return [Row(title, (pictures + 1) / 2) for title, pictures in results.items()]
