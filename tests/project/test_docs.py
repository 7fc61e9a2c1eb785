"""What the documentation names exists: relative links, headings behind a #, commands."""

import re
import shlex
from pathlib import Path

import pytest

from trainer.cli import build_parser

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "s4s_core", "scripts", "web", "example_workflows")
PAGES = [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]
PAGES = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def headings(page):
    """The anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-") for text in found}


@PAGES
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match("[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


@PAGES
def test_commands_can_be_given(page):
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"python (?:s4s\.py|-m trainer) ([^`\n#]*)", text):
        words = shlex.split(line.replace("NAME", "engine"))
        if words and words[0] != "test":
            build_parser(words[0]).parse_args(words)
