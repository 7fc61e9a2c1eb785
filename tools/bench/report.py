"""A benchmark's result: titled tables that print, and save as Markdown and JSON."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from s4s_core.atomic import write_atomic


@dataclass
class Table:
    """Rows of cells under a head; numbers are shown with four significant digits."""

    title: str
    head: list
    rows: list
    note: str = ""

    def markdown(self):
        lines = [f"## {self.title}", "", _row(self.head), _row(["---"] * len(self.head))]
        lines += [_row([_cell(c) for c in row]) for row in self.rows]
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])


@dataclass
class Report:
    """What one benchmark found; `name` is also the name of its files."""

    name: str
    title: str
    command: str
    tables: list = field(default_factory=list)

    def markdown(self):
        head = f"# {self.title}\n\nRerun with `{self.command}`.\n"
        return "\n".join([head, *(table.markdown() for table in self.tables)])

    def data(self):
        return {
            "name": self.name,
            "command": self.command,
            "tables": [vars(table) for table in self.tables],
        }


def _row(cells):
    return "| " + " | ".join(str(c) for c in cells) + " |"


def _cell(value):
    return f"{value:.4g}" if isinstance(value, float) else value


def publish(report, args):
    """Print a report, and write it where --out says."""
    text = json.dumps(report.data(), indent=1)
    print(text if args.json else report.markdown())
    if args.out:
        folder = Path(args.out)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / f"{report.name}.md", report.markdown().encode())
        write_atomic(folder / f"{report.name}.json", text.encode())
