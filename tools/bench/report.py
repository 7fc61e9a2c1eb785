"""Benchmark reports: titled tables, printed or saved as Markdown and JSON."""

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from s4s_core.atomic import write_atomic

Row = list[Any]


@dataclass
class Table:
    """A titled table; floats are shown with four significant digits."""

    title: str
    head: list[str]
    rows: list[Row]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", _line(self.head), _line(["---"] * len(self.head))]
        lines += [_line(map(_cell, row)) for row in self.rows]
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])


@dataclass
class Report:
    """The result of one benchmark; `name` is also the stem of its files."""

    name: str
    title: str
    command: str
    tables: list[Table] = field(default_factory=list)

    def markdown(self) -> str:
        head = f"# {self.title}\n\nRerun with `{self.command}`.\n"
        return "\n".join([head, *(table.markdown() for table in self.tables)])

    def data(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "name": self.name,
            "command": self.command,
            "tables": [vars(table) for table in self.tables],
        }


def _line(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(str(c) for c in cells) + " |"


def _cell(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def publish(report: Report, args: argparse.Namespace) -> None:
    """Print a report, as JSON with --json, and write both files to --out if it is given."""
    text = json.dumps(report.data(), indent=1)
    print(text if args.json else report.markdown())
    if args.out:
        folder = Path(args.out)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / f"{report.name}.md", report.markdown().encode())
        write_atomic(folder / f"{report.name}.json", text.encode())
