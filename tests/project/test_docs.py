"""Links, headings, files and commands in the documentation exist."""

import re
import shlex
from pathlib import Path

import pytest

from s4s_core.names import EFFORTS, further_calls
from s4s_core.training.settings import Goal
from trainer.cli import build_parser
from trainer.config import TrainConfig
from trainer.training import call_plan

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "s4s_core", "scripts", "web", "example_workflows")
PAGES = [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
FILES = r"`((?:s4s_core|trainer|tests|tools|docs|nodes|web|scripts)/[\w./-]+\.\w+)"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@EACH_PAGE
def test_links_point_to_existing_pages_and_headings(page: Path):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match("[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@EACH_PAGE
def test_named_files_exist(page: Path):
    for name in re.findall(FILES, page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


@EACH_PAGE
def test_commands_parse(page: Path):
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"python (?:s4s\.py|-m trainer) ([^`\n#]*)", text):
        words = shlex.split(line.replace("NAME", "engine"))
        if words and words[0] != "test":
            build_parser(words[0]).parse_args(words)


def test_the_costs_are_those_of_the_plan():
    """Of a single step count of 5, and of 4,5,6,8."""
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    for effort, first in EFFORTS.items():
        one, all_four = (
            call_plan(TrainConfig(nfes=nfes, effort=effort)) for nfes in ((5,), (4, 5, 6, 8))
        )
        calls = (first, further_calls(first), all_four.total)
        assert "| `{}` | {:,} | {:,} | {:,} |".format(effort, *calls) in text
        pairs = "{:,} ({} + {} + {})".format(one.pairs, *one.settings.sizes)
        stages = [part[Goal(5)] for part in (one.search, one.training, one.scoring)]
        row = "| `{}` | {} | {} | {:,} | {:,} | {:,} |"
        assert row.format(effort, one.choice, pairs, *stages) in text


def test_the_tree_in_the_architecture_names_every_python_file():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set()
    for section in text.split("\n### `")[1:]:
        files = re.findall(r"^\| `([\w./]+\.py)` \|", section, re.MULTILINE)
        named |= {section.split("`")[0] + file for file in files}
    folders = ("s4s_core", "nodes", "s4s_webui", "trainer", "tools")
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    assert named == {path.relative_to(ROOT).as_posix() for path in paths}
