"""The tab Solvers and its charts."""

import base64
import html
import re

import pytest
from corpus import picture_bomb, typical
from extreme_packs import EXTREMES, extreme_pack
from hostile import EVIL, FORGED_NAMES, ODD_VALUES
from PIL import Image

from s4s_core import load_solver, save_solver
from s4s_core.app.description import describe
from s4s_core.app.folders import list_solvers, solver_files
from s4s_core.errors import S4SError, SolverFileError
from s4s_core.parts import stretched
from s4s_core.solver_file import dump_solver
from s4s_core.table import SolverPack
from trainer.panel import charts, markup, solvers

ERRORS = {"rmse": 0.1, "classical": 0.2}
LOOKS = {"median": 0.09, "classical_median": 0.1, "look": 0.03, "classical_look": 0.02}


def test_a_solver_is_shown_with_facts_scores_download_and_charts(files):
    listed, merged, card, link, tables, plot, delete, confirm = solvers.refresh({}, None, None)
    names = ["a.safetensors", "b.safetensors"]
    assert listed["choices"] == merged["choices"] == names and listed["value"] == names[0]
    description = describe(load_solver(files / names[0]))
    for text in (*description.facts().values(), description.sha256, "Best classical (error)"):
        assert html.escape(text) in card
    assert "data:image/png;base64,AAAA" in card
    assert f'download="{names[0]}"' in link
    assert base64.b64encode((files / names[0]).read_bytes()).decode() in link
    assert tables["choices"] == [(f"{n} steps", str(n)) for n in (3, 4, 5)]
    assert tables["value"] == "3" and plot.count("<svg") >= 2
    assert delete["interactive"] and not confirm["visible"]


def test_a_part_of_a_solver_is_shown_like_its_other_tables(files):
    pack = load_solver(files / "b.safetensors")
    part = stretched(pack[6], 5.0)
    scores = {"6": ERRORS, "6@5": ERRORS | {"rmse": 0.15, "strength": 0.5}}
    parted = SolverPack(pack.tables, {"scores": scores}, (part,))
    save_solver(files / "parts.safetensors", parted)
    _, _, card, _, tables, plot, _, _ = solvers.refresh({}, "parts.safetensors", "6@5")
    title = "6 steps at strength 0.5"
    assert tables["choices"] == [("6 steps", "6"), (title, "6@5")] and "value" not in tables
    assert f"<td>{title}</td><td>0.1500 (75%)</td>" in card
    assert plot == markup.charts(charts.table_charts(part))
    assert plot != markup.charts(charts.table_charts(pack[6]))


def test_scores_are_shown_with_what_part_they_are_of_the_best_classical_ones(files):
    pack = load_solver(files / "b.safetensors")
    for objective, look in (("look", "Look (frequency bands)"), ("lpips-alex", "Look (LPIPS)")):
        about = {"scores": {"6": ERRORS | LOOKS}, "training": {"objective": objective}}
        description = describe(SolverPack(pack.tables, about))
        text = markup.score_table(description)
        for part in (
            "Error",
            "Median error",
            look,
            "0.1000 (50%)",
            "0.0900 (90%)",
            "0.0300 (150%)",
        ):
            assert f">{part}</t" in text
        shown = {label: said for label, said in description.facts().items() if "/ best" in label}
        assert list(shown.values()) == ["50% at 6 steps", "90% at 6 steps", "150% at 6 steps"]
        assert list(shown)[2] == f"{look} / best classical solver"
    assert markup.score_table(describe(SolverPack(pack.tables, {}))) == ""


def guided(table, *multipliers):
    return table.replace(guidance=multipliers)


def test_guidance_is_drawn_where_a_table_sets_it(files):
    bundled = load_solver(files / "a.safetensors")
    pack = SolverPack.of(*(t.replace(guidance=None) for t in bundled.tables.values()))
    plain, title = charts.table_charts(pack[3]), "Guidance by call"
    assert not any(title in chart for chart in plain)
    noise, bars, *weights = charts.table_charts(guided(pack[3], 0.9, 0.5, 1.25))
    assert [noise, *weights] == plain and title in bars
    assert all(f">{text}</text>" in bars for text in ("0.90", "0.50", "1.25"))
    tall = [float(height) for height in re.findall(r'height="([\d.]+)" rx', bars)]
    assert tall == pytest.approx([tall[2] * part / 1.25 for part in (0.9, 0.5, 1.25)], abs=0.1)
    for multipliers in ((0, 0, 0), (1e308, 0, 1), (5e-324, 1, 1)):
        text = charts.table_charts(guided(pack[3], *multipliers))[1]
        assert text.count("<rect") == 3 and not re.search(r"\b(nan|inf)\b|=\"-", text)


@pytest.mark.parametrize("sigmas", EXTREMES)
def test_a_solver_of_extreme_numbers_is_drawn(files, sigmas):
    """A file may hold any finite number."""
    pack = extreme_pack(sigmas)
    (files / "extreme.safetensors").write_bytes(dump_solver(pack))
    *_, tables, plot, _, _ = solvers.refresh({}, "extreme.safetensors", None)
    assert tables["value"] == str(pack.nfes[0])
    assert plot.count("<svg") == 2 and plot.count("<text") < 100
    assert not re.search(r"\b(nan|inf)\b", plot)


def test_an_upload_is_saved_once_and_cannot_choose_its_path(files):
    before = set(solver_files())
    pack = load_solver(files / "b.safetensors")
    data = dump_solver(SolverPack(pack.tables, {**pack.metadata, "name": "../../../evil"}))
    cleared, listed = solvers.add(data)
    assert cleared is None and (files / listed["value"]).read_bytes() == data
    solvers.add(data)
    assert set(solver_files()) == before | {listed["value"]}
    assert (files / listed["value"]).parent == files


def test_a_bad_file_is_listed_with_its_fault_and_refused_as_an_upload(files):
    bad = typical()[0]
    (files / "bad.safetensors").write_bytes(bad.data)
    before = sorted(files.iterdir())
    _, _, card, link, tables, plot, _, _ = solvers.refresh({}, "bad.safetensors", None)
    text = html.unescape(card)
    assert bad.fault in text and text.count(str(files)) == 1
    assert text.isprintable() and len(text) < 1000
    assert link == plot == "" and tables["choices"] == []
    with pytest.raises(SolverFileError, match=bad.fault):
        solvers.add(bad.data)
    for data in (None, "text", b""):
        with pytest.raises(SolverFileError):
            solvers.add(data)
    assert sorted(files.iterdir()) == before


def test_a_file_that_vanishes_while_it_is_shown_is_an_error_of_its_own(files, monkeypatch):
    """It is listed, and deleted before it is read; or read, and deleted before its link is made."""
    found, gone = list_solvers(), files / "a.safetensors"
    data = gone.read_bytes()
    monkeypatch.setattr(solvers, "list_solvers", lambda: found)
    gone.unlink()
    listed, _, card, link, *_ = solvers.refresh({}, gone.name, None)
    assert gone.name in listed["choices"] and "No such file" in card and link == ""
    gone.write_bytes(data)
    monkeypatch.setattr(markup, "solver_card", lambda name, _: gone.unlink() or name)
    card, link = solvers.refresh({}, gone.name, None)[2:4]
    assert card == gone.name and link == ""


@pytest.mark.parametrize("name", FORGED_NAMES)
def test_forged_solvers_are_refused(files, name):
    before = sorted(files.iterdir())
    for act in (solvers.delete, solvers.download_link, lambda n: solvers.merge([n, n], "")):
        with pytest.raises((SolverFileError, TypeError)):
            act(name)
    assert sorted(files.iterdir()) == before
    solvers.refresh({}, name, name)


def test_files_are_deleted_and_merged(files):
    listed = solvers.merge(["a.safetensors", "b.safetensors"], "both")
    assert listed["value"] == "both.safetensors"
    assert load_solver(files / listed["value"]).nfes == (3, 4, 5, 6)
    with pytest.raises(SolverFileError, match="two or more"):
        solvers.merge(["a.safetensors"], "")
    solvers.delete("a.safetensors")
    assert sorted(solver_files()) == ["b.safetensors", "both.safetensors"]


def test_any_values_of_a_merge_give_a_file_or_one_sentence(files):
    names = ["a.safetensors", "b.safetensors"]
    for odd in ODD_VALUES:
        with pytest.raises(S4SError):
            solvers.merge(odd, "")
        try:
            merged = solvers.merge(names, odd)["value"]
        except S4SError as error:
            assert str(error).isprintable()
        else:
            assert load_solver(files / merged).nfes == (3, 4, 5, 6)


def test_a_bomb_of_a_thumbnail_is_never_opened(files, monkeypatch):
    pack = load_solver(files / "b.safetensors")
    save_solver(files / "bomb.safetensors", SolverPack(pack.tables, {"thumbnail": picture_bomb()}))
    monkeypatch.setattr(Image, "open", lambda *_: pytest.fail("the thumbnail was opened"))
    card = solvers.refresh({}, "bomb.safetensors", None)[2]
    assert picture_bomb() in card and "s4s-bad" not in card


def test_texts_of_a_file_are_escaped(files):
    pack = load_solver(files / "b.safetensors")
    about = {"name": EVIL, "model": {"name": EVIL, "hash": EVIL}, "notes": EVIL}
    about |= {
        "teacher": {"name": EVIL, "nfe": 20},
        "scores": {"6": {**ERRORS, "classical_name": EVIL}},
    }
    text = markup.solver_card(EVIL, describe(SolverPack(pack.tables, about)))
    assert "<img" not in text and text.count("&lt;img") == 7


# Charts


def test_charts_leave_out_what_cannot_be_drawn():
    points = [(0, 1.0), (1, float("nan")), (2, -1), (3, None), (4, 0.5), (5, float("inf"))]
    text = charts.line_chart("t", {EVIL: points}, "x")
    assert "nan" not in text and EVIL not in text
    assert [len(p.split()) for p in re.findall('points="([^"]*)"', text)] == [1, 1]
    assert "no data" in charts.line_chart("t", {"a": []}, "x")


@pytest.mark.parametrize("log", [True, False])
def test_axes_contain_their_values_and_have_few_ticks(log):
    for values in ([1.0], [3.0, 3.0], [1e-8, 1e8], [5, 5.0001], [0.049, 0.052], *EXTREMES):
        values = [value for value in values if value > 0]
        axis = charts.Axis(values, 0, 100, log)
        assert all(-1e-6 <= axis(v) <= 100 + 1e-6 for v in (*values, *axis.ticks()))
        assert len(axis.ticks()) <= 25
