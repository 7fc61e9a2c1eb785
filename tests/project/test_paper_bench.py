"""`bench paper`: cells and plans, its instruments, and the orderings of a quick run."""

import json
import textwrap
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from s4s_core import SolverTable, classical_table, load_solver, sample, schedule
from s4s_core.app.folders import DEMO_SOLVER
from s4s_core.classical.lagrange import Grid, stack_rows
from s4s_core.errors import ModelError, ObjectiveError, S4SError, TableError, TrainingCancelled
from s4s_core.mixture import GaussianMixture
from s4s_core.teacher import default_teacher, draw_noise
from s4s_core.training.parameters import widened
from tools.bench.paper import (
    cells,
    claims,
    dpm_v3,
    frechet,
    measures,
    measuring,
    plans,
    report,
    rivals,
)
from tools.bench.paper.cells import Cell, CellStore, table_data, table_from
from tools.bench.paper.measuring import Inputs
from tools.bench.paper.runner import run_cells
from trainer.cli import main

SMALL = Cell(model="mixture", fresh=16)


@pytest.fixture
def model():
    return measuring.load_model("mixture", 1.0)


def quick(folder, *more):
    return main(["bench", "paper", "--quick", "--work", str(folder), *more])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The work folder of a whole quick run."""
    folder = tmp_path_factory.mktemp("paper")
    assert quick(folder / "work", "--out", str(folder / "out"), "--json") == 0
    return folder


# Cells and plans


def test_every_field_and_the_weights_are_part_of_a_cells_key(tmp_path, monkeypatch):
    changes = dict(solver="ipndm", order=2, schedule="logsnr", nfe=6, cfg=2.0, method="s4s", seed=1)
    changes |= dict(budget=9, options=(("fixed", True),), frechet=8, model="demo", fresh=17)
    changes |= dict(teacher="unipc-bh2:3")
    assert SMALL.key == replace(SMALL).key and set(changes) == set(vars(SMALL))
    keys = {replace(SMALL, **{name: value}).key for name, value in changes.items()} | {SMALL.key}
    assert len(keys) == len(changes) + 1
    (tmp_path / "other").write_bytes(b"weights")
    monkeypatch.setattr(cells, "WEIGHTS", tmp_path / "other")
    cells.weights_digest.cache_clear()
    assert SMALL.key not in keys
    cells.weights_digest.cache_clear()


def test_results_are_kept_and_carried_to_another_machine(tmp_path, monkeypatch):
    learned = replace(SMALL, method="s4s", options=(("fixed", True), ("relax", 0.0)))
    here, there = CellStore(tmp_path / "here"), CellStore(tmp_path / "there")
    assert here.load(SMALL) is None
    here.save(SMALL, {"rmse": 0.5})
    here.save(learned, {"rmse": 0.25, "table": {"sigmas": [2.0, 1.0]}})
    ledger = tmp_path / "out" / "cells.jsonl"
    here.export_ledger(ledger, [SMALL, learned, replace(SMALL, seed=9)])
    there.save(SMALL, {"rmse": 0.75})
    there.import_ledger(ledger)
    assert there.load(learned) == here.load(learned)
    assert there.load(SMALL)["rmse"] == 0.75, "what was measured here stays"
    there.import_ledger(tmp_path / "none.jsonl")
    here.path(SMALL).write_text("{")
    assert here.load(SMALL) is None, "a damaged result is measured again"
    monkeypatch.setattr(cells, "RECIPE", -1)
    other = CellStore(tmp_path / "other")
    other.import_ledger(ledger)
    assert other.load(SMALL) is None and not list(other.folder.iterdir())


def test_tables_survive_json():
    tables = [
        classical_table(name, [9.0, 3.0, 1.0, 0.1], order, "ve")
        for name, order in (("ipndm", 3), ("unipc-bh2", 2), ("dpm-solver", 2))
    ]
    for table in [*tables, tables[0].replace(guidance=[1.0, 0.5, 0.0])]:
        assert table_from(json.loads(json.dumps(table_data(table)))) == table


def test_the_plan_holds_every_table_of_the_paper():
    plan = plans.full_plan()
    cells = set(plan.cells)
    assert len(cells) == len(plan.cells)
    for (solver, order), name, nfe in product(plans.SOLVERS, plans.SCHEDULES, (4, 5, 6, 8)):
        at = (solver, order, name, nfe)
        found = {c.method for c in cells if (c.solver, c.order, c.schedule, c.nfe) == at}
        assert {"unlearned", "s4s"} <= found
    rivals = ("bns", "gs", "trajectory", "dpm-v3")
    for cfg, method in product((1.0, 2.0), (*plans.METHODS, *rivals)):
        at = (method, cfg, 5, (), 0)  # options, frechet
        found = {c.seed for c in cells if (c.method, c.cfg, c.nfe, c.options, c.frechet) == at}
        assert found == {0, 1, 2}, (method, cfg)
    for cell in plans.rivals(plan.base, 1, (0,), 5, 1.0):
        if cell.method == "gs":  # its coefficients must follow the times
            nodes = ([9.0, s, 1.0, 0.1] for s in (3, 4))
            tables = [classical_table(cell.solver, each, cell.order, "ve") for each in nodes]
            assert not np.allclose(*(table.coefficients["b"] for table in tables))
        assert cell.solver == "auto" or cell.method in ("gs", "dpm-v3")
    assert {c.cfg for c in cells} == {*plans.GUIDANCE, *plans.CFGS}
    paper = {
        c.budget for c in cells if c.method != "unlearned" and "inclusive" not in dict(c.options)
    }
    assert paper - {0} == {plans.BUDGET, plans.NORMAL, 3 * plans.NORMAL}
    assert {c.frechet for c in cells} == {0, 2048}
    assert {c.frechet for c in plans.full_plan(frechet=0).cells} == {0}
    first = plans.CFGS.index(plans.IMPORTANT_FIRST[0])
    assert plan.cells_of(["headline", "causes"])[0] == plan.headlines[first]["best classical"][0]
    with pytest.raises(S4SError, match="no section 'none'"):
        plan.cells_of(["none"])


def test_causes_are_mended_alone_and_together_against_one_teacher():
    rows = plans.causes(SMALL, 4.0)
    assert list(rows)[0] == "all three" and list(rows)[-1] == "none"
    assert len({cells[0].key for cells in rows.values()}) == 8
    assert rows["all three"] == plans.headline(SMALL, (0,), 4.0)["S4S-GN"]
    none = rows["none"][0]
    old = {"objective": "l2", "consistent": "free", "guidance": False}
    assert none.teacher == "unipc-bh2:3" and old.items() <= dict(none.options).items()
    unguided = plans.causes(SMALL, 1.0)
    assert len({cells[0].key for cells in unguided.values()}) == 4, "there is no guidance to learn"


def test_a_headline_cell_spends_at_most_twelve_thousand_calls(tmp_path):
    plan = plans.full_plan()
    cells = [c for c in plan.cells if "inclusive" in dict(c.options)]
    assert {c.cfg for c in cells} == set(plans.CFGS)
    assert {c.budget for c in cells} == {plans.TOTAL}
    for cell in (plans.newton(SMALL, 1.0, 0), plans.newton(SMALL, 1.0, 0, "unipc-bh2:3")):
        assert 10_000 < measuring.Lab(tmp_path).result(cell)["calls"] <= plans.TOTAL


def test_one_teacher_for_all_but_the_cell_that_names_its_own(tmp_path, monkeypatch):
    lab, used, asked = measuring.Lab(tmp_path), [], []

    def refuse(*_, teacher, **__):
        used.append(teacher)
        raise ObjectiveError("Enough.")

    monkeypatch.setattr(measuring, "choose_teacher", lambda model: asked.append(1) or ("dpmpp", 2))
    monkeypatch.setattr(measuring, "fit", refuse)
    cell = replace(SMALL, method="s4s", solver="ipndm", budget=500)
    for each in (cell, replace(cell, teacher="unipc-bh2:3")):
        with pytest.raises(ObjectiveError, match="Enough"):
            lab.result(each)
    model = lab.model("mixture", 1.0)
    chosen = default_teacher(model, solver=("dpmpp", 2))
    assert used == [chosen, default_teacher(model)]
    again = measuring.Lab(tmp_path)
    target = sample(model.denoise, again._pairs(cell).x, chosen)
    assert torch.allclose(again._pairs(cell).target, target, atol=1e-5)
    assert asked == [1], "it is chosen once and kept"


def test_the_report_reads_only_cells_of_the_plan():
    plan = plans.full_plan()
    asked = set()

    class Asked(dict):
        def get(self, cell, default=None):
            asked.add(cell)
            numbers = dict.fromkeys(("rmse", "median", "psnr", "calls", "seconds"), 1.0)
            return numbers | {"name": "x", "to_teacher": float(len(cell.method)), "order": 2}

    args = SimpleNamespace(quick=False, out=None)
    built = report.build(plan, Asked(), {}, args)
    assert asked <= set(plan.cells), "a table asks for what no one measures"
    assert not set(plan.cells) - asked, "a cell is measured that no table shows"
    assert len(built.tables) > 15
    empty = report.build(plan, {}, {}, args)
    assert len(empty.tables) == 3 and "not run" in empty.markdown()
    for table in built.tables[2:-1]:
        assert table.title in empty.tables[0].note


# Instruments


def test_equal_results_look_equal_and_grain_shows_in_the_high_bands():
    pictures = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    same = measures.measures(pictures, pictures)
    assert same["bands"] == pytest.approx([1.0] * 7) and same["look"] == same["rmse"] == 0
    checks = 0.5 * (-1.0) ** (torch.arange(16)[:, None] + torch.arange(16))
    grainy = measures.measures(pictures + checks, pictures)
    assert grainy["bands"][:6] == pytest.approx([1.0] * 6, abs=1e-6) and grainy["bands"][6] > 1.05
    assert set(measures.measures(pictures[:, 0, 0], pictures[:, 0, 0])) == {
        "rmse",
        "median",
        "psnr",
    }


def test_specks_are_counted_on_plain_white_only():
    teacher = torch.ones(1, 3, 8, 8)
    teacher[..., 6:] = -1  # its neighbours in column 5 are white, but not plain
    result = teacher.clone()
    result[0, 1, 2, 2] = 0.8  # a speck
    result[0, 1, 3, 3] = 0.95  # too faint
    result[0, :, 4, 5:] = 0.0  # beside the edge and on dark
    assert measures.specks(result, teacher) == 1 / (6 * 4)
    assert measures.specks(result, teacher - 1) is None


def test_lpips_takes_every_weight_from_a_file_or_says_what_is_wrong(tmp_path, monkeypatch):
    lpips = pytest.importorskip("lpips")
    state = lpips.LPIPS(net="alex", pnet_rand=True, verbose=False).state_dict()
    given = {f"lin{k}": state[f"lin{k}.model.1.weight"].flatten() for k in range(5)}
    for name in [name for name in state if name.startswith("net.")]:
        given["features." + name.split(".", 2)[2]] = state[name]
    save_file(given, tmp_path / "alexnet.safetensors")
    found = measures.load_lpips(tmp_path)
    assert all(torch.equal(found.network.state_dict()[name], state[name]) for name in state)
    x, y = torch.rand(2, 2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    both, near = measures.L2AndLpips(found).distance(x, y), (x - y).flatten(1).square().mean(1)
    assert torch.allclose(both, found.distance(x, y) + near)
    assert measures.measures(x, y, found)["lpips"] == pytest.approx(
        float(found.distance(x, y).mean())
    )
    del given["lin3"]
    save_file(given, tmp_path / "alexnet.safetensors")
    with pytest.raises(ObjectiveError, match="lin3"):
        measures.load_lpips(tmp_path)
    with pytest.raises(ObjectiveError, match="--lpips"):
        measuring.Lab(tmp_path)._objective("lpips-alex")


def constant_statistics(l, s, size=64, points=41):  # noqa: E741
    grid = np.linspace(-np.log(80), -np.log(0.002), points)
    return dpm_v3.Statistics(
        grid, np.full(points, float(l)), np.full(points, float(s)), np.zeros((points, size))
    )


@pytest.mark.parametrize(("l", "s", "form"), [(-1, 0, "data"), (0, -1, "noise")])
def test_dpm_v3_contains_the_exponential_rules(model, l, s, form):  # noqa: E741
    """With l = -1, s = 0 it interpolates x0, with l = 0, s = -1 the noise."""
    nodes = schedule("edm", 5, model, model.sigma_min)
    grid = Grid("ve", form, nodes, exponential=True)
    rows = [grid.weights(i, min(3, i + 1, 5 - i), ahead=True) for i in range(4)]
    rule = classical_table("exp-lagrange", nodes, 3, "ve", form=form, lower_order_final=True)
    arrays = {"b": rule.coefficients["b"], "a": stack_rows(rows, 4).numpy()}
    table = SolverTable("pc", 3, form, "ve", nodes.numpy(), nodes[:-1].numpy(), arrays)
    x = draw_noise(model, 4, 1)[0].double()
    ours = dpm_v3.Solver(constant_statistics(l, s), nodes, 3).run(model.denoise, x)
    assert torch.allclose(ours, sample(model.denoise, x, table), rtol=0, atol=1e-10)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_dpm_v3_is_exact_where_the_model_is_linear(order):
    """For one Gaussian f depends on lambda alone, so b predicts all of it, at any nodes."""
    mean = torch.linspace(-1, 1, 6, dtype=torch.float64)
    gaussian = GaussianMixture(mean[None], torch.tensor([0.5]), sigma_min=0.01, sigma_max=20.0)
    grid = np.linspace(-np.log(20), -np.log(0.01), 4001)
    gain = 0.25 / (0.25 + np.exp(-2 * grid))
    f = -(1 - gain)[:, None] * mean.numpy()
    statistics = dpm_v3.Statistics(
        grid, gain - 1, np.zeros_like(grid), np.gradient(f, grid, axis=0, edge_order=2)
    )
    x = 20 * torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    result = dpm_v3.Solver(statistics, [20.0, 5.0, 1.0, 0.01], order).run(gaussian.denoise, x)
    shrink = ((0.25 + 0.01**2) / (0.25 + 20.0**2)) ** 0.5
    assert torch.allclose(result, mean + shrink * (x - mean), atol=2e-5)


def test_dpm_v3_measures_what_the_model_is():
    """A Gaussian's own l, and no more calls than the budget."""
    gaussian = GaussianMixture(torch.zeros(1, 32).double(), torch.tensor([0.5]))
    found = dpm_v3.measure(gaussian, 3000, seed=1)
    gain = 0.25 / (0.25 + np.exp(-2 * found.grid))
    assert np.abs(found.l - (gain - 1)).max() < 0.01
    assert 2000 < found.calls <= 3000
    flow = SimpleNamespace(space="flow")
    with pytest.raises(TableError, match="ve space"):
        dpm_v3.measure(flow, 3000, seed=1)


def test_dpm_v3_beats_unipc_on_the_mixture(model):
    statistics = dpm_v3.measure(model, 6000, seed=2)
    nodes = schedule("edm", 5, model, model.sigma_min)
    x, _ = draw_noise(model, 32, 3)
    truth = sample(
        model.denoise, x, classical_table("unipc-bh2", schedule("edm", 40, model), 3, "ve")
    )
    ours = dpm_v3.Solver(statistics, nodes, 3).run(model.denoise, x)
    theirs = sample(model.denoise, x, classical_table("unipc-bh2", nodes, 3, "ve"))
    assert (ours - truth).norm() < 0.7 * (theirs - truth).norm()


def test_trajectory_matching_is_near_the_exact_trajectory_at_every_node(model):
    table = classical_table("ipndm", schedule("edm", 5, model), 3, "ve")
    found, calls = rivals.trajectory(model, table, ("unipc-bh2", 3), 2000, seed=1)
    assert calls <= 2000 and found.sigmas.tolist() == table.sigmas.tolist()
    x, cond = draw_noise(model, 32, 2)
    fine = rivals._refined(torch.tensor(table.sigmas), 100, model.sigma_min)
    exact = classical_table("dpmpp", fine, 2, "ve")
    truth, before, after = (
        rivals._states(model, each, x, cond)[0] for each in (exact, table, found)
    )
    for node in range(2, 6):
        gap = truth[100 * node]
        assert (after[node] - gap).norm() < 0.7 * (before[node] - gap).norm()


def test_gs_starts_as_theory_and_moves_it_with_the_times(model):
    nodes = schedule("edm", 4, model)
    student = rivals.GeneralizedSolver(model, "dpmpp", 3, nodes)
    table = student.table(student.logits, student.offsets)
    start = widened(classical_table("dpmpp", nodes, 3, "ve"), 4)
    assert np.allclose(table.sigmas, start.sigmas)
    assert np.allclose(table.coefficients["b"], start.coefficients["b"])
    moved = student.table(student.logits.detach() + torch.tensor([0.3, 0, 0, 0]), student.offsets)
    theory = widened(classical_table("dpmpp", moved.sigmas.copy(), 3, "ve"), 4)
    assert moved.sigmas[1] < table.sigmas[1]
    assert np.allclose(moved.coefficients["b"], theory.coefficients["b"])
    assert moved.sigmas[0] == 80.0 and moved.sigmas[-1] == 0.0


def test_frechet_distance_of_gaussians():
    """Against the closed form for covariances that commute."""
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(5, 5, generator=generator).double())[0]
    first, second = torch.rand(2, 5, generator=generator).double() + 0.1
    one = frechet.Moments(torch.zeros(5).double(), axes * first @ axes.T)
    two = frechet.Moments(torch.ones(5).double(), axes * second @ axes.T)
    expected = 5 + float((first.sqrt() - second.sqrt()).square().sum())
    assert frechet.distance(one, two) == pytest.approx(expected, abs=1e-9)
    assert frechet.distance(two, two) == pytest.approx(0, abs=1e-9)
    drawn = torch.randn(20_000, 5, generator=generator).double() * first.sqrt() @ axes.T
    assert frechet.distance(frechet.Moments.of(drawn), one) < 0.01


@pytest.mark.skipif(not frechet.available(), reason="requirements/benchmarks.txt is not installed")
def test_real_features_tell_pictures_apart():
    network = frechet.load_network()
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(24, 3, 32, 32, generator=generator) * 2 - 1
    plain = noise.mean((2, 3), keepdim=True).expand_as(noise)
    apart = frechet.distance(frechet.moments(noise, network), frechet.moments(plain, network))
    halves = frechet.distance(*(frechet.moments(half, network) for half in noise.split(12)))
    assert apart > 2 * halves > 0


@pytest.fixture
def cheap_features(monkeypatch):
    """Eight averages of a picture instead of a network."""
    features = lambda x: torch.nn.functional.adaptive_avg_pool2d(x, (2, 2))[:, :2].flatten(1)  # noqa: E731
    monkeypatch.setattr(frechet, "load_network", lambda: features)


def test_frechet_cells_render_once_and_know_the_floor(tmp_path, cheap_features, monkeypatch):
    save_file(
        {"pictures": torch.zeros(9, 3, 32, 32, dtype=torch.uint8)}, tmp_path / "p.safetensors"
    )
    lab = measuring.Lab(tmp_path / "work", Inputs(images=str(tmp_path / "p.safetensors")))
    euler = Cell(solver="euler", order=1, nfe=2, frechet=12, fresh=2)
    found = lab.result(euler)
    floor = lab.result(replace(euler, method="teacher"))
    assert found["to_teacher"] != floor["to_teacher"] > 0 and found["to_images"] > 0
    lab.store.path(euler).unlink()
    monkeypatch.setattr(frechet.FrechetDistances, "_render", None)  # the pictures' moments are kept
    assert lab.result(euler)["to_teacher"] == found["to_teacher"]


def test_the_bundled_solver_is_measured_by_its_file(tmp_path):
    rows = plans.bundled(Cell(fresh=2))
    assert [own.nfe for _, own in rows] == [classical.nfe for classical, _ in rows]
    own = rows[2][1]
    lab = measuring.Lab(tmp_path)
    assert lab.table(own) == load_solver(DEMO_SOLVER)[own.nfe]
    assert dict(own.options)["pack"] == load_solver(DEMO_SOLVER).digest, "another file, another key"


# Running


def test_a_quick_run_shows_the_orderings_and_measures_nothing_twice(finished, capsys, monkeypatch):
    found = json.loads((finished / "out" / "paper-quick.json").read_text())
    rows = next(t for t in found["tables"] if t["title"] == "Orderings")["rows"]
    assert len(rows) == 10 and {row[-1] for row in rows} == {"yes"}
    assert "not run" not in (finished / "out" / "paper-quick.md").read_text()
    monkeypatch.setattr(measuring.Lab, "_measure", lambda *_: pytest.fail("measured again"))
    assert quick(finished / "work") == 0 and "Orderings" in capsys.readouterr().out


def test_an_ordering_that_fails_or_was_not_measured_is_an_error(
    finished, tmp_path, capsys, monkeypatch
):
    real, plan = claims.orderings, plans.quick_plan()
    with pytest.raises(S4SError, match="Ordering failed"):
        claims.check_orderings(plan, {})
    claims.check_orderings(plan, {}, partial=True)
    assert quick(tmp_path, "--minutes", "0") == 0
    flipped = lambda plan: [(c, worse, better, 0.5) for c, better, worse, _ in real(plan)]  # noqa: E731
    monkeypatch.setattr(claims, "orderings", flipped)
    assert quick(finished / "work") == 1
    assert "Ordering failed: S4S is better" in capsys.readouterr().err


def test_a_run_without_time_reports_what_an_earlier_report_holds(tmp_path, capsys):
    cell = plans.full_plan().cells[0]
    CellStore(tmp_path / "work").save(cell, {"rmse": 0.5, "median": 0.5, "psnr": 9.0, "calls": 1})
    for work in ("work", "elsewhere"):
        options = ["--work", str(tmp_path / work), "--out", str(tmp_path / "out")]
        assert main(["bench", "paper", "--minutes", "0", *options, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["tables"]
        assert found[0]["rows"][0][1] == 1 and "not run" in json.dumps(found[1])
    assert CellStore(tmp_path / "elsewhere").load(cell)["rmse"] == 0.5


def test_a_model_in_a_file_gets_its_headline_and_pictures(tmp_path, capsys, monkeypatch):
    code = """
        from s4s_core.mixture import GaussianMixture

        def model():
            return GaussianMixture.random(4, (3, 8, 8), seed=1, spread=0.5, scale=0.1)
    """
    (tmp_path / "faces.py").write_text(textwrap.dedent(code))
    monkeypatch.setattr(plans, "NFES", (4, 5))
    out, work = str(tmp_path / "out"), str(tmp_path / "work")
    options = ["--model", f"{tmp_path / 'faces.py'}:model", "--out", out, "--pictures", out]
    assert main(["bench", "paper", *options, "--work", work]) == 0
    text = (tmp_path / "out" / "paper-faces.md").read_text()
    assert "faces, 4 NFE" in text and "DPM++ 2M Karras" in text and "not run" not in text
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"pictures-faces-cfg1-4.png", "pictures-faces-cfg1-5.png"} < names
    assert str(tmp_path) not in text + (tmp_path / "out" / "paper-faces-cells.jsonl").read_text()
    assert (
        main(["bench", "paper", "--model", f"{tmp_path / 'faces.py'}:other", "--work", work]) == 0
    )
    assert "not run" not in capsys.readouterr().out, "it is all measured"
    assert main(["bench", "paper", "--model", "nothing"]) == 1
    assert "--model is demo or FILE.py:NAME" in capsys.readouterr().err
    for place in (f"{tmp_path / 'faces.py'}:other", f"{tmp_path / 'none.py'}:model"):
        with pytest.raises(ModelError):
            measuring.python_model(place)


def test_a_stopped_cell_goes_on_where_it_was(tmp_path):
    """Stopped between model calls, the result is that of an undisturbed run."""
    cell = replace(SMALL, method="s4s", solver="ipndm", budget=6000)
    whole, left = measuring.Lab(tmp_path / "whole").result(cell), iter(range(120))
    stopped = measuring.Lab(tmp_path / "stopped", stop=lambda: next(left, None) is None)
    with pytest.raises(TrainingCancelled):
        stopped.result(cell)
    assert stopped.store.state(cell).exists() and stopped.store.load(cell) is None
    again = measuring.Lab(tmp_path / "stopped").result(cell)
    assert again["table"] == whole["table"] and again["rmse"] == whole["rmse"]
    assert not stopped.store.state(cell).exists()


def test_a_cell_that_is_killed_while_it_is_scored_is_not_trained_or_searched_again(
    tmp_path, monkeypatch
):
    cell = plans.slow_rows(SMALL, 4)["S4S-GN"][0]
    monkeypatch.setattr(GaussianMixture, "fingerprint", "mixture", raising=False)
    with monkeypatch.context() as killed:
        killed.setattr(measuring, "measures", None)
        with pytest.raises(TypeError):
            measuring.Lab(tmp_path).result(cell)
    monkeypatch.setattr(measuring.Lab, "_search", None)
    lab, calls = measuring.Lab(tmp_path), []
    count = lambda *args: calls.append(len(args[0])) or denoise(*args)  # noqa: E731
    denoise = lab.model("mixture", 1.0).denoise
    monkeypatch.setattr(lab.model("mixture", 1.0), "denoise", count, raising=False)
    assert lab.result(cell)["rmse"] > 0 and sum(calls) == 4 * SMALL.fresh
    assert not lab.store.state(cell).exists()


def test_a_run_ends_between_cells_and_goes_on_after_one_that_cannot_be_measured(
    tmp_path, monkeypatch
):
    def refuse(*args, **options):
        raise ObjectiveError("There are no weights.")

    monkeypatch.setattr(measuring, "fit", refuse)
    good = replace(SMALL, solver="ipndm")
    bad = replace(good, method="s4s", budget=500)
    assert run_cells([bad, good], tmp_path, Inputs(), 1, deadline=0) == {}
    assert not list(tmp_path.glob("*.json"))
    assert run_cells([bad, good], tmp_path, Inputs(), 1, None) == {bad: "There are no weights."}
    assert CellStore(tmp_path).load(good) and not CellStore(tmp_path).load(bad)


def test_workers_find_what_one_process_finds(tmp_path):
    cells = [replace(SMALL, solver=s, nfe=4) for s in ("ipndm", "dpmpp", "unipc-bh2")]
    for workers in (1, 2):
        run_cells(cells, tmp_path / str(workers), Inputs(), workers, None)
    for cell in cells:
        one, two = (CellStore(tmp_path / name).load(cell)["rmse"] for name in "12")
        assert one == pytest.approx(two, rel=1e-5) and one > 0  # the workers have more threads


def test_the_ld3_schedule_is_learned_once(tmp_path, monkeypatch):
    lab = measuring.Lab(tmp_path)
    plain = replace(SMALL, solver="ipndm", schedule="ld3", budget=2000)
    table = lab.table(plain)
    assert table.sigmas.tolist() != schedule("edm", 5, lab.model("mixture", 1.0)).tolist()
    monkeypatch.setattr(measuring, "fit", None)
    start, calls = lab._start(replace(plain, method="s4s"))
    assert start == table and calls == lab.result(plain)["calls"] > 2000  # and it is paid for


def test_plots_are_drawn_from_whatever_is_there(tmp_path):
    pytest.importorskip("matplotlib")
    plan = plans.full_plan()
    classical = plans.best(plan.base, 5, 1.0)
    newton = plans.learned(plan.base, "gauss-newton", plan.budget)
    found = {"rmse": 0.1, "median": 0.1, "psnr": 20.0, "calls": 0, "seconds": 1.0}
    args = SimpleNamespace(quick=False, out=str(tmp_path))
    for results in ({}, {newton: found}, {classical: found}, {classical: found, newton: found}):
        text = report.build(plan, results, {}, args).markdown()
        assert "paper-headline.png" in text
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {"paper-headline.png", "paper-nfe.png"}
