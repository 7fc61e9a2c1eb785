"""Every node, input and output has its texts and help pages in every language."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from s4s_core.names import EFFORTS, further_calls
from tools import english_locale, example_workflows

ROOT = Path(__file__).resolve().parents[2]
DEFINITIONS = json.loads((ROOT / "tools/node_definitions.json").read_text("utf-8"))
NODES = sorted(name for name in DEFINITIONS if name.startswith("S4S"))
LANGUAGES = ("en", "zh")


def words(language):
    return json.loads((ROOT / "locales" / language / "nodeDefs.json").read_text("utf-8"))


def leaves(texts):
    for value in texts.values():
        yield from leaves(value) if isinstance(value, dict) else [value]


@pytest.fixture(scope="module")
def nodes():
    """The nodes' own texts, from a separate process."""
    run = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "english_locale.py"), "--print"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_the_english_locale_is_up_to_date(nodes):
    assert words("en") == english_locale.english(nodes), "run tools/english_locale.py"


def test_the_recorded_definitions_are_up_to_date(nodes):
    """Except for the lists that depend on the host: samplers, schedulers and files."""
    for name, info in nodes.items():
        now, recorded = example_workflows.reduced(info), DEFINITIONS[name]
        assert now["outputs"] == recorded["outputs"], name
        assert list(now["inputs"]) == list(recorded["inputs"]), name
        for key, given in now["inputs"].items():
            kept = {k: v for k, v in recorded["inputs"][key].items() if k != "options"}
            assert {k: v for k, v in given.items() if k != "options"} == kept, (name, key)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_input_and_output_has_its_texts(language):
    found = words(language)
    assert sorted(found) == NODES and len(NODES) == 10
    for name, texts in found.items():
        definition = DEFINITIONS[name]
        assert set(texts) == {"display_name", "description", "inputs", "outputs"}
        assert set(texts["inputs"]) == set(definition["inputs"]), name
        assert list(texts["outputs"]) == [str(i) for i in range(len(definition["outputs"]))], name
        for part in (*texts["inputs"].values(), *texts["outputs"].values()):
            assert set(part) == {"name", "tooltip"}
        for text in leaves(texts):  # without characters that mean something to the page
            assert isinstance(text, str) and text.strip() and not set(text) & set("{}|@"), text


def test_chinese_is_chinese():
    english, chinese = words("en"), words("zh")
    for name in NODES:
        for part in ("inputs", "outputs"):
            for key, texts in chinese[name][part].items():
                assert texts["tooltip"] != english[name][part][key]["tooltip"], (name, key)
                assert any("\u4e00" <= letter <= "\u9fff" for letter in texts["tooltip"])


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_efforts_are_those_of_training(language):
    text = words(language)["S4STrainSolver"]["inputs"]["effort"]["tooltip"]
    spent = [(calls, further_calls(calls)) for calls in EFFORTS.values()]
    assert re.findall(r"[\d,]+\d", text) == [f"{calls:,}" for both in spent for calls in both]


@pytest.mark.parametrize("name", NODES)
def test_every_node_has_help_in_both_languages(name):
    folder = ROOT / "web" / "docs"
    english, chinese = folder / f"{name}.md", folder / name / "zh.md"
    titles = [path.read_text("utf-8").splitlines()[0] for path in (english, chinese)]
    assert titles == [f"# {words(language)[name]['display_name']}" for language in LANGUAGES]


def test_no_help_page_without_a_node():
    folder = ROOT / "web" / "docs"
    pages = {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}
    assert pages == {f"{name}.md" for name in NODES} | {f"{name}/zh.md" for name in NODES}
