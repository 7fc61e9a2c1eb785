"""The front end's files: the JavaScript tests, and what ComfyUI requires of the folder."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from corpus import malformed
from hostile import HOSTILE

from s4s_core import load_solver
from s4s_core.app.description import describe
from s4s_core.app.folders import DEMO_SOLVER
from s4s_core.errors import SolverFileError
from s4s_core.table import SolverPack

ROOT = Path(__file__).resolve().parents[2]
WEB = ROOT / "web"
MODULES = sorted((WEB / "s4s").glob("*.mjs"))
TESTS = sorted((ROOT / "tests/comfyui/web").glob("*.test.mjs"))
NODE = shutil.which("node")
STATUSES = ("queued", "running", "done", "failed", "cancelled", "interrupted", "damaged")
FORBIDDEN = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc"


def node_version():
    if not NODE:
        return 0
    text = subprocess.run([NODE, "--version"], capture_output=True, text=True, timeout=60).stdout
    return int(text.strip().lstrip("v").split(".")[0] or 0)


@pytest.mark.skipif(node_version() < 20, reason="needs node 20 or newer")
@pytest.mark.parametrize("path", TESTS, ids=lambda p: p.name)
def test_modules_under_node(path):
    run = subprocess.run(
        [NODE, "--test", str(path)], capture_output=True, text=True, timeout=300, encoding="utf-8"
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"^# pass [1-9]", run.stdout, re.MULTILINE) or "ℹ pass" in run.stdout


def listed(tmp_path):
    """What the routes return for hostile and malformed files."""
    good = load_solver(DEMO_SOLVER)
    for what, about in HOSTILE.items():
        said = json.loads(json.dumps(describe(SolverPack(good.tables, about)).plain()))
        yield {"file": f"{what}.safetensors", "error": None} | said
    path = tmp_path / "bad.safetensors"
    for case in malformed():
        path.write_bytes(case.data)
        with pytest.raises(SolverFileError) as caught:
            load_solver(path)
        yield {"file": f"{case.name}.safetensors", "error": str(caught.value), "thumbnail": None}


@pytest.mark.skipif(node_version() < 20, reason="needs node 20 or newer")
def test_the_sidebar_shows_hostile_and_malformed_files(tmp_path):
    entries, script = tmp_path / "solvers.json", ROOT / "tests" / "comfyui" / "web" / "hostile.mjs"
    entries.write_text(json.dumps(list(listed(tmp_path))), "utf-8")
    run = subprocess.run(
        [NODE, str(script), str(entries)], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_module_has_tests():
    tests = "".join(p.read_text("utf-8") for p in (ROOT / "tests/comfyui/web").glob("*.test.mjs"))
    untested = {p.name for p in MODULES if f"/web/s4s/{p.name}" not in tests}
    assert untested == {"dom.mjs"}  # through the cards


def test_comfyui_imports_only_one_file():
    assert [p.name for p in WEB.rglob("*.js")] == ["s4s.js"]


def test_every_module_is_revalidated():
    text = (WEB / "s4s.js").read_text("utf-8")
    named = json.loads(re.search(r"const MODULES = (\[.*?\]);", text, re.DOTALL)[1])
    assert named == [p.stem for p in MODULES]


@pytest.mark.parametrize("path", [WEB / "s4s.js", *MODULES], ids=lambda p: p.name)
def test_modules_never_write_html(path):
    assert not re.search(FORBIDDEN, path.read_text("utf-8"))


def test_no_foreign_addresses():
    for path in [WEB / "s4s.js", WEB / "s4s.css", *MODULES]:
        found = set(re.findall(r"https?://[^\s\"'`]+", path.read_text("utf-8")))
        assert found <= {"http://www.w3.org/2000/svg"}, path.name


def words(language):
    """The sidebar's texts."""
    return json.loads((ROOT / f"locales/{language}/main.json").read_text("utf-8"))["s4s"]


def test_every_used_text_exists_in_both_languages():
    asked = set()
    for path in [WEB / "s4s.js", *MODULES]:
        code = path.read_text("utf-8")
        for call in re.findall(r"\bt\(((?:[^()]|\([^()]*\))*)\)", code):
            asked |= set(re.findall(r'"([a-zA-Z]+)"', call.split("{")[0]))
    asked |= {f"status.{s}" for s in STATUSES}
    for language in ("en", "zh"):
        assert set(words(language)) == asked, language
        assert all(words(language).values())


def test_both_languages_use_the_same_placeholders():
    chinese = words("zh")
    for key, text in words("en").items():
        assert re.findall(r"\{\w+\}", text) == re.findall(r"\{\w+\}", chinese[key]), key
