"""`inspect FILE...`: what is inside solver files, for people or as JSON."""

import json

from s4s_core.errors import visible

FIRST = ("name", "model", "cfg", "resolution", "teacher", "training")
LONGEST_TEXT = 200


def add_arguments(parser):
    parser.add_argument("files", nargs="+", metavar="FILE", help="a solver file (.safetensors)")
    parser.add_argument("--json", action="store_true", help="print one JSON list, an entry a file")
    parser.add_argument("--page", metavar="HTML", help="save plots of a file's tables as a page")


def run(args):
    from s4s_core.solver_file import load_solver

    packs = [(file, load_solver(file)) for file in args.files]
    if args.page:
        save_page(args.page, packs)
    show = as_data if args.json else as_text
    shown = [show(file, pack) for file, pack in packs]
    print(json.dumps(shown, indent=2) if args.json else "\n\n".join(shown))
    return 0


def save_page(path, packs):
    """Write the plots of one solver file as an HTML page."""
    from s4s_core.atomic import write_atomic
    from s4s_core.errors import S4SError

    from ..panel.charts import chart_page

    if len(packs) > 1:
        raise S4SError("A page shows one solver file: name only one with --page.")
    try:
        write_atomic(path, chart_page(*packs[0]).encode())
    except OSError as error:
        raise S4SError(f"{path} cannot be written: {error.strerror or error}.") from error


def as_data(file, pack):
    """Everything that a pack holds, as JSON-able data."""
    tables = {
        nfe: {
            "family": table.family,
            "order": table.order,
            "form": table.form,
            "space": table.space,
            "ending": table.ending,
            **{name: array.tolist() for name, array in table.arrays.items()},
        }
        for nfe, table in pack.tables.items()
    }
    return {
        "file": file,
        "digest": pack.digest,
        "metadata": dict(pack.metadata),
        "tables": tables,
    }


def as_text(file, pack):
    """A readable summary: the file, what its header says, then each NFE's table and scores."""
    about = dict(pack.metadata)
    scores = about.pop("scores", {})
    known = {key: about.pop(key) for key in FIRST if key in about}
    head = [printable(file), *fact_lines({"digest": pack.digest, **known, **about})]
    tables = [
        [*table_lines(table), *fact_lines({"score": scores.get(str(nfe))})]
        for nfe, table in pack.tables.items()
    ]
    return "\n\n".join("\n".join(lines) for lines in [head, *tables])


def fact_lines(mapping):
    """The leaves of nested metadata, one aligned line each."""
    lines = list(facts(mapping))
    width = max((len(key) for key, _ in lines), default=0)
    return [f"  {key:<{width}}  {text}" for key, text in lines]


def facts(mapping, prefix=""):
    """The leaves of nested metadata as (dotted key, text), without the empty ones."""
    for key, value in mapping.items():
        name = prefix + printable(key)
        if isinstance(value, dict):
            yield from facts(value, f"{name}.")
        elif value not in (None, "", []):
            items = value if isinstance(value, list) else [value]
            yield name, ", ".join(map(printable, items))


def printable(value):
    """Text from a file that anyone may have made: short, and safe to show on a terminal."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if len(text) > LONGEST_TEXT:
        text = text[:LONGEST_TEXT] + "..."
    return visible(text)


def table_lines(table):
    """One table: what it is, its times, and a row of coefficients per step."""
    lines = [
        f"NFE {table.nfe}: {table.family}, order {table.order}, {table.form} form, "
        f"{table.space} space, ends at {table.ending:.6g}",
        f"  nodes  {numbers(table.sigmas)}",
    ]
    if table.call_sigmas.tolist() != table.sigmas[:-1].tolist():
        lines.append(f"  calls  {numbers(table.call_sigmas)}")
    for name, array in table.coefficients.items():
        for step, row in enumerate(array):
            stages = row.reshape(-1, row.shape[-1])  # single-step methods have several a step
            lines.append(f"  {'' if step else name:<5}  " + " | ".join(map(numbers, stages)))
    return lines


def numbers(values):
    return " ".join(f"{value:>10.5g}" for value in values)
