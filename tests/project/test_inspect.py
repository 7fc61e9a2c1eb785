"""`inspect` on every family and on hostile files."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from corpus import GOLDEN, picture_bomb, typical
from extreme_packs import EXTREMES, extreme_pack
from hostile import fill_with_hostile_entries
from PIL import Image

from s4s_core import SolverPack, SolverTable, load_solver, save_solver
from s4s_core.app.description import describe
from s4s_core.app.pictures import Row, sheet
from s4s_core.parts import stretched
from trainer import cli

EVIL = "\x1b[2J\x1b]0;owned\x07\r\n\u202egnp.exe\u2028\x9b31m<script>alert(1)</script>\0"


@pytest.fixture
def inspect(capsys):
    """Runs the command: (exit code, standard output, standard error)."""

    def run(*arguments):
        code = cli.main(["inspect", *map(str, arguments)])
        out, error = capsys.readouterr()
        return code, out, error

    return run


@pytest.fixture
def hostile(tmp_path):
    """A valid solver file with escapes in its keys and values, and very much text."""
    table = SolverTable("lms", 1, "noise", "ve", [9.0, 1.0], [9.0], {"b": [[1.0]]})
    about = {"name": EVIL, "notes": "x" * 50_000, EVIL: {EVIL: [EVIL, {"deep": EVIL}]}}
    about |= {"scores": {"1": {EVIL: EVIL}}, "empty": {}, "none": None, "tags": []}
    about["number"] = 2**64 - 1
    path = tmp_path / "hostile.safetensors"
    save_solver(path, SolverPack.of(table, metadata=about))
    return path


def test_every_family_as_text(inspect):
    code, out, error = inspect(GOLDEN)
    head, *tables = out.split("\n\n")
    assert code == 0 and error == ""
    assert load_solver(GOLDEN).digest in head and "Golden ✨ solver" in head
    assert [text.partition("\n")[0] for text in tables] == [
        "NFE 1: pc, order 1, data form, ve space, ends at 0",
        "NFE 2: pc, order 2, data form, ve space, ends at 0.002",
        "NFE 3: lms, order 2, noise form, ve space, ends at 0",
        "NFE 4: ss, order 2, noise form, ve space, ends at 0.1",
        "NFE 5: ss, order 2, data form, ve space, ends at 0",
    ]
    words = [[line.split() for line in text.splitlines()] for text in tables]
    assert ["b", "1"] in words[0] and not any(line[0] == "a" for line in words[0])
    assert ["a", "0.5", "0.5", "0"] in words[1] and ["b", "1", "0"] in words[1]
    assert ["score.solver", "0.1"] in words[2] and ["calls", "80", "6.9", "0.66667"] in words[2]
    assert ["a", "0", "0", "|", "1", "0"] in words[3] and ["0", "0", "|", "0.3", "0"] in words[3]


def test_every_family_as_json(inspect):
    code, out, _ = inspect("--json", GOLDEN)
    (entry,) = json.loads(out)
    pack = load_solver(GOLDEN)
    assert code == 0 and entry["file"] == str(GOLDEN) and entry["digest"] == pack.digest
    assert entry["metadata"] == dict(pack.metadata)
    for nfe, table in pack.tables.items():
        shown = entry["tables"][str(nfe)]
        for name in ("family", "order", "form", "space", "ending"):
            assert shown[name] == getattr(table, name)
        for name, array in table.arrays.items():
            assert np.array(shown[name]).tobytes() == array.tobytes()


def test_guidance_and_scores_are_shown_where_a_file_has_them(inspect, tmp_path):
    file, page = tmp_path / "guided.safetensors", tmp_path / "page.html"
    pack = load_solver(GOLDEN)
    scores = {"rmse": 0.1, "classical": 0.2, "look": 0.03}
    about = {"scores": {"3": scores}, "training": {"objective": "lpips-vgg"}}
    save_solver(file, SolverPack.of(pack[3].replace(guidance=[0.9, 0.845, 1]), metadata=about))
    _, out, _ = inspect("--page", page, file)
    words = [line.split() for line in out.splitlines()]
    assert ["guidance", "x", "0.90,", "0.84,", "1.00"] in words
    assert ["3", "steps", "Error", "0.1000", "50%", "of", "the", "best", "classical"] in words
    assert ["3", "steps", "Look", "(LPIPS)", "0.0300"] in words
    text = page.read_text(encoding="utf-8")
    assert "Guidance by call" in text and "0.1000 (50%)" in text
    (entry,) = json.loads(inspect("--json", file)[1])
    assert entry["tables"]["3"]["guidance"] == [0.9, 0.845, 1]
    assert [measure["ratio"] for measure in entry["measures"]["3"]] == [0.5, None]
    _, out, _ = inspect("--page", page, GOLDEN)
    assert "uidance" not in out + page.read_text(encoding="utf-8")


def pack_with_parts(*strengths):
    """The golden table of three calls, and a part from level 5 and 2 each, with their scores."""
    whole = load_solver(GOLDEN)[3]
    parts = [stretched(whole, level) for level in (5.0, 2.0)]
    score = {"rmse": 0.1, "classical": 0.2}
    scores = {"3": score} | {
        part.part_name: score | {"strength": strength}
        for part, strength in zip(parts, strengths, strict=True)
    }
    return SolverPack.of(whole, parts=parts, metadata={"scores": scores})


def test_parts_are_shown_with_where_they_begin(inspect, tmp_path):
    """A file may say anything of a strength: then the noise level is shown."""
    file, page = tmp_path / "parts.safetensors", tmp_path / "page.html"
    save_solver(file, pack_with_parts(0.5, EVIL))
    _, out, _ = inspect("--page", page, file)
    for part in ("strength 0.5", "noise level 2"):
        assert f"\nNFE 3 at {part}: lms" in out
        assert re.search(f"\n  3 steps at {part} +Error  +0.1000 +50% of the best classical", out)
        assert f"<h2>3 steps at {part}</h2>" in page.read_text(encoding="utf-8")
    (entry,) = json.loads(inspect("--json", file)[1])
    assert entry["tables"]["3@2"]["sigmas"][0] == 2
    assert [(part["name"], part["strength"]) for part in entry["parts"]] == [
        ("3@5", 0.5),
        ("3@2", None),
    ]
    assert [measure["ratio"] for measure in entry["measures"]["3@2"]] == [0.5]


def test_the_facts_name_strengths_where_files_do():
    label = "Image-to-image"
    facts = describe(pack_with_parts(0.5, 0.25)).facts()
    assert facts[label] == "strength 0.5, 0.25 at 3 steps"
    shares = "strength 0.5: 50% at 3 steps; strength 0.25: 50% at 3 steps"
    assert facts[f"{label} error / best classical solver"] == shares
    assert facts["Error / best classical solver"] == "50% at 3 steps"
    for odd in (None, True, 0, 1, -1e308, 10**18, [0.5]):
        facts = describe(pack_with_parts(odd, 0.25)).facts()
        assert facts[label] == "noise level 5 at 3 steps; strength 0.25 at 3 steps"


def test_hostile_metadata_is_shown_safely(inspect, hostile, tmp_path):
    code, out, _ = inspect(hostile)
    assert code == 0 and "owned" in out and "  calls" not in out  # they are the nodes
    assert all(c == "\n" or c.isprintable() for c in out)
    assert max(map(len, out.splitlines())) < 2000 and len(out.splitlines()) < 20
    _, out, _ = inspect("--json", hostile)
    assert out.isascii() and "\x1b" not in out and "\0" not in out
    assert json.loads(out)[0]["metadata"]["name"] == EVIL
    inspect("--page", tmp_path / "page.html", hostile)
    assert "<script>" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def euler(nfe, order=1):
    """Euler's method as a table of any order."""
    b, sigmas = np.zeros((nfe, order)), np.linspace(80, 0, nfe + 1)
    b[:, 0] = 1
    return SolverTable("lms", order, "noise", "ve", sigmas, sigmas[:-1], {"b": b})


LARGE = {
    "many tables": lambda: SolverPack.of(*map(euler, range(1, 250))),
    "many steps of a high order": lambda: SolverPack.of(euler(1000, 64)),
    "many facts": lambda: SolverPack.of(
        euler(1), metadata={"k" * 190: {"k" * 190: {f"x{n}": n for n in range(14_000)}}}
    ),
    "many scores": lambda: SolverPack.of(
        euler(1), metadata={"scores": {"1": {f"x{n}": n for n in range(14_000)}}}
    ),
    "many parts": lambda: SolverPack.of(
        euler(1), parts=[stretched(euler(1), level) for level in range(1, 80)]
    ),
    "a long list": lambda: SolverPack.of(euler(1), metadata={"x": list(range(30_000))}),
    "a long name": lambda: SolverPack.of(euler(1), metadata={"name": "x" * 99_000}),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_file_is_cut(inspect, tmp_path, name):
    """On the terminal after some lines; JSON and the page are a few times as large as a file."""
    path, page = tmp_path / "large.safetensors", tmp_path / "page.html"
    save_solver(path, LARGE[name]())
    _, out, _ = inspect(path)
    assert len(out.splitlines()) <= 251 and max(map(len, out.splitlines())) < 250
    assert ("more lines; see --json" in out) is name.startswith("many")
    _, out, _ = inspect("--json", path)
    assert len(out) < 8 << 20 and json.loads(out)[0]["metadata"] == load_solver(path).metadata
    inspect("--page", page, path)
    assert page.stat().st_size < 32 << 20


def test_a_sheet_cuts_the_titles_that_files_give():
    row = Row("x" * 100_000, torch.zeros(1, 3, 8, 8))
    assert sheet([row]).width < 3000


@pytest.mark.parametrize("case", typical(), ids=lambda case: case.name)
@pytest.mark.parametrize("options", [[], ["--json"], ["--page", "page.html"]], ids=str)
def test_every_kind_of_bad_file_says_why(inspect, tmp_path, monkeypatch, case, options):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.safetensors"
    path.write_bytes(case.data)
    code, out, error = inspect(*options, path)
    assert code == 1 and out == "" and os.listdir(tmp_path) == ["bad.safetensors"]
    assert error.startswith("error: ") and str(path) in error and case.fault in error
    assert error.count("\n") == 1 and error[:-1].isprintable() and len(error) < 800


@pytest.mark.parametrize("options", [[], ["--json"], ["--page", "page.html"]], ids=str)
def test_a_bomb_of_a_thumbnail_is_never_opened(inspect, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    pack, path = load_solver(GOLDEN), tmp_path / "bomb.safetensors"
    save_solver(path, SolverPack(pack.tables, {"thumbnail": picture_bomb()}))
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("the thumbnail was opened"))
    code, _, error = inspect(*options, path)
    assert code == 0 and error == ""


def test_a_terminal_that_knows_only_ascii(hostile):
    """Like a Windows code page: characters that cannot be shown are replaced."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "trainer", "inspect", str(GOLDEN), str(hostile)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True)
    assert done.returncode == 0 and done.stderr == b""
    assert done.stdout.isascii() and b"NFE 5: ss" in done.stdout


def test_a_page_shows_every_table_and_extreme_numbers(inspect, tmp_path):
    file, page = tmp_path / "extreme.safetensors", tmp_path / "page.html"
    code, _, _ = inspect("--page", page, GOLDEN)
    text = page.read_text(encoding="utf-8")
    assert code == 0 and text.count(" steps</h2>") == len(load_solver(GOLDEN).nfes)
    for sigmas in EXTREMES:
        save_solver(file, extreme_pack(sigmas))
        code, _, error = inspect("--page", page, file)
        assert (code, error) == (0, "") and page.read_text(encoding="utf-8").count("<svg") == 2


def test_a_folder_is_shown_file_by_file_and_faults_are_errors(inspect, tmp_path):
    listed, bad = fill_with_hostile_entries(tmp_path, GOLDEN.read_bytes())
    (tmp_path / "damaged.safetensors").write_bytes(b"no solver")
    code, out, error = inspect("--json", tmp_path)
    shown = {entry["file"] for entry in json.loads(out)}
    assert code == 1 and shown == {str(tmp_path / name) for name in listed}
    assert error.count("\n") == error.count("error: ") == bad + 1
    assert all(line.isprintable() for line in error.splitlines())
    code, out, _ = inspect(tmp_path)
    assert code == 1 and out.count(load_solver(GOLDEN).digest) == len(listed)


def test_a_file_whose_name_is_not_utf_8_has_a_page(inspect, tmp_path):
    file, page = tmp_path / os.fsdecode(b"\xff\xfe.safetensors"), tmp_path / "page.html"
    save_solver(file, extreme_pack(EXTREMES[0]))
    assert inspect("--page", page, file)[::2] == (0, "")
    assert "\N{REPLACEMENT CHARACTER}" in page.read_text(encoding="utf-8")


def test_files_that_cannot_be_read_or_written_are_errors(inspect, tmp_path):
    for arguments, reason in (
        ((tmp_path / "no.safetensors",), "No such file"),
        ((tmp_path,), "no solver files"),
        (("--page", tmp_path / "no" / "page.html", GOLDEN), ""),
        (("--page", tmp_path / "p", GOLDEN, "x"), ""),
    ):
        code, out, error = inspect(*arguments)
        assert (code, out) == (1, "") and reason in error
        assert error.startswith("error: ") and error.count("\n") == 1
