"""The commands train, sample, compare and bench, run in this process."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from job_models import latents
from PIL import Image

from s4s_core import SolverPack, fit, load_solver, sample, save_solver, teacher
from s4s_core.candidates import named_solver
from s4s_core.demo import SOLVERS
from tools.bench import engine, training
from trainer import comparison, results
from trainer.cli import build_parser, main
from trainer.commands import bench
from trainer.comparison import Comparison, Score, most_different
from trainer.models import ModelChoice, open_model
from trainer.results import FRESH_SEED

needs_demo = pytest.mark.skipif(not SOLVERS["ve"].exists(), reason="no solver is bundled yet")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A solver of the mixture model, trained with the smallest budgets, and the printed summary."""
    folder = tmp_path_factory.mktemp("train")
    out = folder / "my.safetensors"
    arguments = ["--model", "mixture", "--nfe", "5,4", "--budget", "6000", "--out", str(out)]
    return arguments, out


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_train_saves_a_solver_that_beats_every_classical_one(capsys, trained):
    arguments, out = trained
    code, text, progress = run(capsys, "train", *arguments, "--json")
    summary = json.loads(text)
    assert code == 0 and summary["file"] == str(out) and summary["picture"] is None
    for nfe in ("4", "5"):
        errors = summary["errors"][nfe]
        assert errors["S4S"] < 0.95 * min(v for k, v in errors.items() if k != "S4S")
    pack = load_solver(out)
    assert pack.nfes == (4, 5)
    assert pack.metadata["model"]["name"] == "mixture" and pack.metadata["name"] == "mixture solver"
    assert pack.metadata["training"]["calls"] == summary["calls"]
    assert "teacher" in progress


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "--out", "x.ckpt"], "must end in .safetensors"),
        (["train", "--out", "no/such/folder/x.safetensors"], "does not exist"),
        (
            ["train", "--nfe", "five", "--model", "mixture"],
            "--nfe must be a list of positive integers",
        ),
        (["train", "--model", "nothing"], "Unknown model 'nothing'"),
        (["train", "--model", "mixture", "--init", "ipndm"], "solver:order:schedule"),
        (["train", "--model", "mixture", "--init", "ipndm:9:edm"], "ipndm"),
        (["train", "--model", "mixture", "--objective", "lpips-vgg"], "Use --objective l2"),
        (["estimate", "--model", "mixture", "--objective", "lpips-vgg"], "Use --objective l2"),
        (["sample", "--model", "mixture"], "makes no pictures"),
        (["sample", "--count", "0"], "--count must be >= 1"),
        (["sample", "--nfe", "0"], "--nfe must be >= 1"),
        (["sample", "--seed", str(1 << 80)], "--seed must be >= 0"),
        (["sample", "--out", "no/such/a.png"], "does not exist"),
        (["compare", "--out", "no/such/a.png"], "does not exist"),
        (["compare", "--seed", "-1"], "--seed must be >= 0"),
        (["compare", "--model", "mixture"], "Choose a file with --solver"),
    ],
)
def test_bad_arguments_print_one_line(capsys, monkeypatch, tmp_path, arguments, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert code == 1 and not out and not list(tmp_path.iterdir())
    *progress, line = err.splitlines()
    assert line.startswith("error: ") and says in line and len(progress) <= 1


@needs_demo
def test_a_solver_of_another_space_is_refused(capsys, tmp_path):
    options = ["--model", "demo-flow", "--solver", str(SOLVERS["ve"]), "--nfe", "5", "--count", "1"]
    for command, out in (("sample", "a.png"), ("compare", "b.png"), ("render", "folder")):
        code, _, err = run(capsys, command, *options, "--out", str(tmp_path / out))
        assert code == 1 and "error: This solver is for noise" in err, command


@needs_demo
@pytest.mark.parametrize("command", ["sample", "compare", "render"])
def test_differences_from_training_are_warnings(capsys, tmp_path, command):
    options = ["--nfe", "3", "--count", "1", "--out", str(tmp_path / "out")]
    code, _, err = run(capsys, command, *options)
    assert code == 0 and "warning" not in err
    code, _, err = run(capsys, command, *options, "--cfg", "7")
    assert code == 0
    assert "warning: The solver was trained for CFG 2, this run has CFG 7." in err


@needs_demo
def test_a_hostile_name_in_a_warning_is_only_text(capsys, tmp_path):
    pack, path = load_solver(SOLVERS["ve"]), tmp_path / "hostile.safetensors"
    about = {**pack.metadata, "model": {"name": "\x1b[2J\nowned", "hash": "0" * 16}}
    save_solver(path, SolverPack(pack.tables, about))
    options = ["--solver", str(path), "--nfe", "3", "--count", "1", "--out", str(tmp_path / "a")]
    code, _, err = run(capsys, "sample", *options)
    assert code == 0 and "\x1b" not in err
    assert "trained for the model \N{REPLACEMENT CHARACTER}[2J" in err


@needs_demo
@pytest.mark.parametrize("command", ["sample", "compare", "render"])
def test_no_seed_draws_the_noise_of_training(capsys, tmp_path, monkeypatch, command):
    """Seeds 1, 2 and 3 are the training, validation and held-out pairs of seed 0."""
    seeds, draw = [], teacher.draw_noise

    def record(model, count, seed):
        seeds.append(seed)
        return draw(model, count, seed)

    for module in (teacher, results):
        monkeypatch.setattr(module, "draw_noise", record)
    options = ["--nfe", "3", "--count", "1", "--out", str(tmp_path / "out"), "--seed", "1"]
    assert run(capsys, command, *options)[0] == 0
    assert seeds == [FRESH_SEED + 1]


def test_a_table_that_the_file_lacks_is_refused_before_a_model_is_opened(capsys, monkeypatch):
    monkeypatch.setattr("trainer.models.open_model", lambda choice: pytest.fail("it was opened"))
    code, _, err = run(capsys, "compare", "--nfe", "3,99")
    assert code == 1 and "no table for 99 steps. Choose one of 3" in err


def test_pictures_that_cannot_be_saved_are_an_error(capsys, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    few = ["--classical", "euler:1:edm", "--nfe", "1", "--count", "1"]
    code, _, err = run(capsys, "sample", *few, "--out", str(tmp_path / "folder"))
    assert code == 1 and "Could not save" in err
    code, _, err = run(capsys, "render", "--out", str(tmp_path / "file"))
    assert code == 1 and "Could not make the folder" in err


def test_the_picture_shows_where_the_solvers_differ():
    first, second = torch.tensor([4.0, 1.0, 9.0, 0.25]), torch.tensor([4.0, 9.0, 0.0, 0.0])
    scores = [Score("one", None, first), Score("other", None, second)]
    assert most_different(scores, 2).tolist() == [1, 2]  # errors 1 and 3, 3 and 0
    assert most_different(scores, 9).tolist() == [0, 1, 2, 3]
    assert scores[0].rmse == pytest.approx((14.25 / 4) ** 0.5)


def test_compare_needs_no_pictures(capsys, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, out = trained
    main(["train", *arguments])
    capsys.readouterr()
    compare = ["compare", "--model", "mixture", "--solver", str(out), "--nfe", "5"]
    code, text, _ = run(capsys, *compare)
    assert code == 0 and "5 NFE" in text and "of the best classical" in text
    assert not list(tmp_path.iterdir())
    code, text, err = run(capsys, *compare[:-1], "7")
    assert code == 1 and "no table for 7 steps. Choose one of 4, 5" in err


@needs_demo
def test_sample_and_compare_draw_pictures(capsys, tmp_path):
    grid = tmp_path / "grid.png"
    code, text, _ = run(capsys, "sample", "--count", "4", "--out", str(grid), "--json")
    assert code == 0 and json.loads(text)["nfe"] == 5
    first = grid.read_bytes()
    assert Image.open(grid).size[0] > 4 * 64
    run(capsys, "sample", "--count", "4", "--out", str(grid))
    assert grid.read_bytes() == first, "the same seed must give the same picture"
    run(capsys, "sample", "--count", "4", "--seed", "1", "--out", str(grid))
    assert grid.read_bytes() != first
    code, *_ = run(capsys, "compare", "--nfe", "5", "--count", "4", "--out", str(grid))
    assert code == 0 and Image.open(grid).size[1] > 3 * 64


LATENTS = ["--model", f"python:{Path(__file__).parents[1] / 'helpers' / 'job_models.py'}:latents"]
FEW = ["--config", "few.toml", "--nfe", "2", "--budget", "1"]


@pytest.fixture
def few(tmp_path, monkeypatch):
    """A working folder with the config of the smallest training."""
    monkeypatch.chdir(tmp_path)
    sets = "samples = 2\nvalidation = 2\nheld_out = 2\nstarts = 1\n"
    Path("few.toml").write_text(f"[options]\n{sets}", encoding="utf-8")


def test_latents_are_shown_as_their_decoder_shows_them(capsys, few):
    few_calls = ["--classical", "euler:1:edm", "--nfe", "1", "--count", "3"]
    code, *_ = run(capsys, "sample", *LATENTS, *few_calls, "--prompt", "a cat", "--width", "64")
    picture = Image.open("samples.png")
    assert code == 0 and picture.size[0] > 3 * 128 and len(picture.getcolors(1 << 20)) > 16
    assert run(capsys, "train", *LATENTS, *FEW)[0] == 0 and Image.open("solver.png")
    solver = ["--solver", "solver.safetensors", "--count", "2"]
    code, text, _ = run(capsys, "compare", *LATENTS, *solver)
    assert code == 0 and "Picture: compare.png" in text and Image.open("compare.png")


def test_memory_for_two_samples_is_enough_to_train_compare_and_sample(capsys, few):
    modest = ["--model", LATENTS[1].replace("latents", "modest")]
    assert run(capsys, "train", *modest, *FEW)[0] == 0 and Image.open("solver.png")
    solver = ["--solver", "solver.safetensors", "--nfe", "2", "--count", "5"]
    assert run(capsys, "sample", *modest, *solver)[0] == 0
    assert run(capsys, "render", *modest, *solver, "--out", "sheets")[0] == 0
    assert run(capsys, "sample", *LATENTS, *solver, "--out", "whole.png")[0] == 0
    halved, whole = (np.array(Image.open(p)).astype(int) for p in ("samples.png", "whole.png"))
    assert np.abs(halved - whole).max() <= 1


def test_the_summary_is_printed_without_memory_for_the_picture(capsys, few, monkeypatch):
    def decode(self, rows, path):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Comparison, "_save_picture", decode)
    code, text, err = run(capsys, "train", *LATENTS, *FEW, "--json")
    assert code == 0 and json.loads(text)["picture"] is None
    assert "Not enough memory for sample pictures" in err


def test_train_compares_with_the_teacher_that_it_learned_from(capsys, few, monkeypatch):
    seen = []
    monkeypatch.setattr(Comparison, "save_picture", lambda self, *_: seen.append(self))
    table = named_solver(latents(None), "euler:1:edm", 3, 0.0).table
    assert run(capsys, "train", *LATENTS, *FEW, "--teacher", "euler:1:edm:3")[0] == 0
    pairs = seen[0].pairs
    target = sample(latents(None).denoise, pairs.x, table)
    assert seen[0].teacher == table and torch.equal(pairs.target, target)


def test_comparisons_use_the_teacher_of_the_file(capsys, few, monkeypatch):
    """Its calls, its schedule and its ending, by compare and by render."""
    sets = Path("few.toml").read_text(encoding="utf-8") + "ending = 0.05\n"
    Path("few.toml").write_text(sets, encoding="utf-8")
    assert (
        run(capsys, "train", *LATENTS, *FEW, "--teacher", "euler:1:edm:3", "--no-picture")[0] == 0
    )
    seen = []
    monkeypatch.setattr(Comparison, "save_picture", lambda self, *_: seen.append(self.teacher))
    solver = ["--solver", "solver.safetensors", "--nfe", "2", "--count", "2"]
    assert run(capsys, "compare", *LATENTS, *solver)[0] == 0
    assert seen == [named_solver(latents(None), "euler:1:edm", 3, 0.05).table]
    assert run(capsys, "render", *LATENTS, *solver, "--out", "sheets")[0] == 0
    done = json.loads(Path("sheets/state.json").read_text())["done"]
    assert done["teacher"]["nfe"] == 3


@pytest.mark.parametrize("said", [None, 5, [], "x", {}, {"model": {"prompts": 5}}, {"teacher": 1}])
def test_a_file_without_a_teacher_has_the_default_one(said):
    model = latents(None)
    table = named_solver(model, "euler:1:edm", 2, 0.0).table
    pack = SolverPack.of(table, metadata={"config": said})
    assert comparison.recorded_teacher(pack, model) == teacher.default_teacher(model)


def test_no_picture_means_no_comparison(capsys, few, monkeypatch):
    monkeypatch.setattr("trainer.comparison.Comparison", None)
    code, text, _ = run(capsys, "train", *LATENTS, *FEW, "--no-picture", "--json")
    summary, score = json.loads(text), load_solver("solver.safetensors").metadata["scores"]["2"]
    assert code == 0 and summary["picture"] is None and not Path("solver.png").exists()
    best = {score["classical_name"]: score["classical"]}
    assert summary["errors"] == {"2": {"S4S": score["rmse"], **best}}


def test_without_a_search_no_classical_solver_is_reported(capsys, few):
    with open("few.toml", "a") as file:
        file.write('\ninit = "ddim:1:edm"\n')
    code, text, _ = run(capsys, "train", *LATENTS, *FEW, "--no-picture")
    assert code == 0 and "S4S" in text and "classical" not in text


@pytest.mark.parametrize(("options", "seed"), [([], 0), (["--seed", "7"], 7)])
def test_bench_training_trains_with_the_seed_that_it_is_given(monkeypatch, options, seed):
    seeds = []
    record = lambda *_, **options: seeds.append(options["seed"]) or fit(*_, **options)  # noqa: E731
    monkeypatch.setattr(training, "fit", record)
    line = ["bench", "training", "--fresh", "1", "--budget", "1", *options]
    bench = training.Bench(
        open_model(ModelChoice("mixture")), 2, build_parser("bench").parse_args(line)
    )
    few = {"samples": 1, "validation": 1, "held_out": 1, "init": "euler:1:edm"}
    assert bench.run("a label", "gauss-newton", **few).final > 0 and seeds == [seed]


def test_bench_engine_measures_ratios_in_one_run(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "ROUNDS", 3)
    monkeypatch.setattr(engine, "SHAPES", ((1, 4, 8, 8),))
    code, text, _ = run(capsys, "bench", "engine", "--out", str(tmp_path))
    assert code == 0 and "bare Euler loop" in text
    data = json.loads((tmp_path / "engine.json").read_text())
    rows = {row[0]: row for row in data["tables"][0]["rows"]}
    assert rows["bare Euler loop"][2] == 1.0
    assert all(row[1] > 0 for row in rows.values())
    assert (tmp_path / "engine.md").read_text().startswith("# Overhead")


@pytest.mark.parametrize("line", [["bench"], ["bench", "paper", "--quick"]])
def test_without_a_checkout_bench_says_where_benchmarks_are(capsys, monkeypatch, tmp_path, line):
    monkeypatch.setattr(bench, "CHECKOUT", tmp_path)
    code, _, error = run(capsys, *line)
    assert code == 1 and error == f"error: {bench.MISSING}\n"
