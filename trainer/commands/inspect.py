"""`inspect FILE...`: show the contents of solver files, for people or as JSON.

What cannot be shown is an error of its own, and the rest is shown.
"""

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s4s_core.errors import S4SError, SolverFileError, short, visible

if TYPE_CHECKING:
    from s4s_core import SolverPack, SolverTable
    from s4s_core.app.description import SolverDescription

PAGE = (".html", ".htm")
FIRST = ("name", "model", "cfg", "resolution", "teacher", "training")
LONGEST_TEXT, LONGEST_LINE = 200, 240
MOST_FACTS, MOST_LINES = 60, 250
"""What is shown of a file at most: lines of metadata, and all lines."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="a solver file (.safetensors) or a folder of them"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, an entry per file")
    parser.add_argument("--page", metavar="HTML", help="save plots of one file as a web page")


def run(args: Namespace) -> int:
    from s4s_core.solver_file import load_solver

    from ..arguments import check_output

    files, errors = find_files(args.files)
    if args.page is not None:
        check_output("--page", args.page, PAGE, *files)
        if len(files) + len(errors) > 1:
            raise S4SError("--page takes one solver file only.")
    entries = []
    for file in files:
        try:
            pack = load_solver(file)
        except SolverFileError as fault:
            errors.append(str(fault))
            continue
        if args.page is not None:
            save_page(args.page, file, pack)
        if args.json:
            entries.append(as_data(file, pack))
        else:
            print(as_text(file, pack), end="\n\n" if len(files) > 1 else "\n", flush=True)
    if entries:
        print(json.dumps(entries, indent=2))
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


def find_files(given: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the files that are named, and those in folders; and why others cannot be listed."""
    from s4s_core.app.folders import list_folders

    files, errors = [], []
    for path in given:
        if not os.path.isdir(path):
            files.append(path)
            continue
        found = list_folders([Path(path)])
        files += map(str, found.files.values())
        errors += [visible(f"{path}: {name}: {why}") for name, why in found.faults.items()]
        if not (found.files or found.faults):
            errors.append(visible(f"{path}: There are no solver files."))
    return files, errors


def save_page(path: str, file: str, pack: "SolverPack") -> None:
    """Save the plots of a solver file as an HTML page."""
    from s4s_core.atomic import write_atomic

    from ..panel.charts import chart_page

    try:
        write_atomic(path, chart_page(file, pack).encode())
    except OSError as error:
        raise S4SError(f"Could not write {path}: {error.strerror or error}.") from error


def as_data(file: str, pack: "SolverPack") -> dict[str, Any]:
    """Return everything in a pack as JSON-able data, and its scores with their ratios."""
    from s4s_core.app.description import describe

    tables = {
        name: {
            "family": table.family,
            "order": table.order,
            "form": table.form,
            "space": table.space,
            "ending": table.ending,
            **{key: array.tolist() for key, array in table.arrays.items()},
        }
        for name, table in pack.named.items()
    }
    described = describe(pack).plain()
    return {
        "file": file,
        "digest": pack.digest,
        "metadata": dict(pack.metadata),
        "tables": tables,
        "parts": described["parts"],
        "measures": described["measures"],
    }


def as_text(file: str, pack: "SolverPack") -> str:
    """Return a readable summary: the file, its metadata and scores, then each table.

    It is cut at MOST_LINES lines of LONGEST_LINE characters.
    """
    from s4s_core.app.description import describe

    about, solver = dict(pack.metadata), describe(pack)
    scores, heads = about.pop("scores", {}), {str(nfe): f"NFE {nfe}" for nfe in pack.nfes}
    heads |= {part.name: f"NFE {part.nfe} at {' '.join(part.begins)}" for part in solver.parts}
    known = {key: about.pop(key) for key in FIRST if key in about}
    facts = fact_lines({"digest": pack.digest, **known, **about})
    tables = [
        [*table_lines(heads[name], table), *fact_lines({"score": scores.get(name)})]
        for name, table in pack.named.items()
    ]
    parts = [[printable(file), *cut(facts, MOST_FACTS)], list(score_lines(solver)), *tables]
    lines = [line for part in parts if part for line in ("", *part)][1:]
    return "\n".join(short(line, LONGEST_LINE) for line in cut(lines, MOST_LINES))


def cut(lines: list[str], most: int) -> list[str]:
    """Return the first lines, and how many more there are."""
    more = len(lines) - most
    return lines if more <= 0 else [*lines[:most], f"  ... and {more:,} more lines; see --json"]


def score_lines(solver: "SolverDescription") -> Iterator[str]:
    """Yield a solver's scores and how the best classical solvers' compare, a line each."""
    width = max(map(len, solver.titles.values()))
    for name, title in solver.titles.items():
        for measure in solver.measures[name]:
            share = "" if measure.ratio is None else f"{measure.ratio:.0%} of the best classical"
            line = f"  {title:<{width}}  {measure.title:<22}  {measure.ours:<8.4f}  {share}"
            yield line.rstrip()


def fact_lines(mapping: Mapping[str, Any]) -> list[str]:
    """Return the leaves of nested metadata, one aligned line each."""
    lines = list(leaves(mapping))
    width = min(max((len(key) for key, _ in lines), default=0), LONGEST_TEXT)
    return [f"  {key:<{width}}  {text}" for key, text in lines]


def leaves(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested metadata as (dotted key, text), without the empty ones."""
    for key, value in mapping.items():
        name = prefix + printable(key)
        if isinstance(value, dict):
            yield from leaves(value, f"{name}.")
        elif value not in (None, "", []):
            items = value if isinstance(value, list) else [value]
            yield name, ", ".join(map(printable, items))


def printable(value: object) -> str:
    """Return untrusted data as short text that is safe to show on a terminal."""
    return short(f"{value:.6g}" if isinstance(value, float) else str(value), LONGEST_TEXT)


def table_lines(head: str, table: "SolverTable") -> list[str]:
    """Describe a table: what it is, its times, and a row of coefficients per step."""
    lines = [
        f"{head}: {table.family}, order {table.order}, {table.form} form, "
        f"{table.space} space, ends at {table.ending:.6g}",
        f"  nodes  {numbers(table.sigmas)}",
    ]
    if table.call_sigmas.tolist() != table.sigmas[:-1].tolist():
        lines.append(f"  calls  {numbers(table.call_sigmas)}")
    if table.guidance is not None:
        lines.append("  guidance x " + ", ".join(f"{value:.2f}" for value in table.guidance))
    for name, array in table.coefficients.items():
        for step, row in enumerate(array):
            stages = row.reshape(-1, row.shape[-1])  # single-step methods have several per step
            lines.append(f"  {'' if step else name:<5}  " + " | ".join(map(numbers, stages)))
    return lines


def numbers(values: Iterable[float]) -> str:
    return " ".join(f"{value:>10.5g}" for value in values)
