"""The commands train, sample, compare and bench, run in this process."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from job_models import latents
from PIL import Image

from s4s_core import (
    SolverPack,
    classical_table,
    fit,
    load_solver,
    sample,
    save_solver,
    schedule,
    teacher,
)
from s4s_core.app.jobs import Job, list_jobs
from s4s_core.candidates import named_solver
from s4s_core.demo import SOLVERS
from s4s_core.errors import TableError
from tools.bench import engine, training
from trainer import comparison, rendering, results
from trainer.cli import build_parser, main
from trainer.commands import bench, compare
from trainer.comparison import Comparison, Score, most_different
from trainer.config import TrainConfig
from trainer.jobs import queue_job
from trainer.models import ModelChoice, open_model
from trainer.results import FRESH_SEED

needs_demo = pytest.mark.skipif(not SOLVERS["ve"].exists(), reason="no solver is bundled yet")


def run(capsys, *arguments):
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_train_saves_a_solver_that_beats_every_classical_one(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train = ["--model", "mixture", "--nfe", "5,4", "--budget", "6000", "--out", "my.safetensors"]
    code, text, progress = run(capsys, "train", *train, "--json")
    summary, pack = json.loads(text), load_solver("my.safetensors")
    assert code == 0 and summary["picture"] is None and "teacher" in progress
    for nfe in ("4", "5"):
        errors = summary["errors"][nfe]
        assert errors["S4S"] < 0.95 * min(v for k, v in errors.items() if k != "S4S")
    assert pack.nfes == (4, 5) and pack.metadata["model"]["name"] == "mixture"
    assert pack.metadata["training"]["calls"] == summary["calls"]
    compare = ["compare", "--model", "mixture", "--solver", "my.safetensors", "--nfe", "5"]
    code, text, _ = run(capsys, *compare)
    assert code == 0 and "\n  5 steps\n" in text and "of the best classical" in text
    assert [path.name for path in tmp_path.iterdir()] == ["my.safetensors"]


RUNNERS = ["sample", "compare", "render"]
WRITERS = [
    ("sample", "--out", ".png"),
    ("compare", "--out", ".png"),
    ("inspect", "--page", ".html", str(SOLVERS["ve"])),
]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "--out", "x.ckpt"], "must end in .safetensors"),
        (["train", "--out", "no/such/folder/x.safetensors"], "does not exist"),
        (["train", "--nfe", "five", "--model", "mixture"], "--nfe must be a list of positive"),
        (["train", "--model", "nothing"], "Unknown model 'nothing'"),
        (["train", "--model", "mixture", "--init", "ipndm"], "solver:order:schedule"),
        (["train", "--model", "mixture", "--init", "ipndm:9:edm"], "ipndm"),
        (["train", "--model", "mixture", "--objective", "lpips-vgg"], "Use --objective auto"),
        (["sample", "--model", "mixture"], "makes no pictures"),
        (["sample", "--count", "0"], "--count must be >= 1"),
        (["sample", "--seed", str(1 << 80)], "--seed must be >= 0"),
        *(
            ([command, option, *more], says)
            for command, option, ending, *more in WRITERS
            for option, says in (
                (f"{option}=no/such/a{ending}", "does not exist"),
                (f"{option}={'x' * 300}/a{ending}", "does not exist"),
                (f"{option}={'x' * 300}{ending}", "File name too long"),
                (f"{option}=a.ckpt", "must end in"),
                (f"{option}=", "must end in"),
            )
        ),
        (["train", "--config="], "Could not read ''"),
        (["train", "--preset="], "Unknown preset ''"),
        (["train", "--nfe="], "--nfe must be a list of positive"),
        (["train", "--init=", "--model", "mixture"], "solver:order:schedule"),
        (["train", "--model="], "Unknown model ''"),
        (["sample", "--classical="], "solver:order:schedule"),
        *(([command, "--solver=", "--out=a.png"], "cannot be read") for command in RUNNERS),
        (["compare", "--nfe", "3,99"], "no table for 99 steps. Choose one of 3"),
        (["compare", "--model", "mixture"], "Choose a file with --solver"),
    ],
)
def test_bad_arguments_print_one_line(capsys, monkeypatch, tmp_path, arguments, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert code == 1 and not out and not list(tmp_path.iterdir())
    *progress, line = err.splitlines()
    assert line.startswith("error: ") and says in line and len(progress) <= 1


@pytest.mark.parametrize("alias", [os.link, os.symlink, lambda *_: None], ids=["link", "soft", ""])
@pytest.mark.parametrize(
    ("command", "given", "out"),
    [
        (["inspect", "m.html", "--page"], "m.html", "o.htm"),
        (["sample", "--solver", "m.png", "--out"], "m.png", "o.png"),
        (["compare", "--solver", "m.png", "--out"], "m.png", "o.png"),
        (["render", "--solver", "m/solver.png", "--out"], "m/solver.png", "o/solver.png"),
        (["train", "--config", "m.safetensors", "--out"], "m.safetensors", "o.safetensors"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_no_output_is_an_input(capsys, monkeypatch, tmp_path, command, given, out, alias):
    """By whatever name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trainer.models.open_model", lambda _: pytest.fail("the model is loaded"))
    for name in (given, out):
        Path(name).parent.mkdir(exist_ok=True)
    data = b"" if command[0] == "train" else SOLVERS["ve"].read_bytes()  # a config may be empty
    Path(given).write_bytes(data)
    alias(Path(given).absolute(), out)
    out = out if os.path.lexists(out) else given
    code, _, err = run(capsys, *command, str(Path(out).parent) if "/" in out else out)
    assert code == 1 and "would overwrite" in err and err.count("\n") == 1
    assert Path(given).read_bytes() == data and os.path.lexists(out)


@needs_demo
def test_a_solver_of_another_space_is_refused(capsys, tmp_path):
    options = ["--model", "demo-flow", "--solver", str(SOLVERS["ve"]), "--nfe", "5", "--count", "1"]
    for command, out in (("sample", "a.png"), ("compare", "b.png"), ("render", "folder")):
        code, _, err = run(capsys, command, *options, "--out", str(tmp_path / out))
        assert code == 1 and "error: This solver is for noise" in err, command


@needs_demo
@pytest.mark.parametrize("command", ["sample", "compare", "render"])
def test_differences_from_training_are_warnings_of_plain_text(capsys, tmp_path, command):
    pack, path = load_solver(SOLVERS["ve"]), tmp_path / "hostile.safetensors"
    about = {**pack.metadata, "model": {"name": "\x1b[2J\nowned", "hash": "0" * 16}}
    half = pack[3].replace(sigmas=pack[3].sigmas / 2, call_sigmas=pack[3].call_sigmas / 2)
    save_solver(path, SolverPack({3: half}, about))
    options = ["--nfe", "3", "--count", "1", "--out", str(tmp_path / "out.png")]
    code, _, err = run(capsys, command, *options)
    assert code == 0 and "warning" not in err
    code, _, err = run(capsys, command, *options, "--cfg", "7", "--solver", str(path))
    assert code == 0 and "\x1b" not in err
    assert "warning: The solver was trained for CFG 4, this run has CFG 7." in err
    assert "warning: The solver begins at noise level 40, this model at 80." in err
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
    options = ["--nfe", "3", "--count", "1", "--out", str(tmp_path / "out.png"), "--seed", "1"]
    assert run(capsys, command, *options)[0] == 0
    assert seeds == [FRESH_SEED + 1]


def test_pictures_that_cannot_be_saved_are_an_error(capsys, tmp_path):
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").touch()
    code, _, err = run(capsys, "sample", "--out", str(tmp_path / "folder.png"))
    assert code == 1 and "is not a file" in err
    code, _, err = run(capsys, "render", "--out", str(tmp_path / "file"))
    assert code == 1 and "Could not make the folder" in err


@pytest.mark.parametrize("action", ["show", "cancel", "resume", "delete"])
def test_each_job_that_is_named_is_tried(capsys, monkeypatch, tmp_path, action):
    """A damaged one and one that is not there stop no other."""
    monkeypatch.setenv("S4S_HOME", str(tmp_path))
    monkeypatch.setattr("s4s_core.app.jobs.ensure_runner", lambda: None)
    config = TrainConfig(model=ModelChoice("mixture"))
    ids = [queue_job(config, start=False).id for _ in range(3)]
    for id in ids if action == "resume" else ():
        Job(id).cancel()
    damaged, absent = ids[1], "20250101-000000-abcdef"
    (tmp_path / "jobs" / damaged / "config.toml").unlink()
    if action != "delete":  # a damaged one can be deleted
        (tmp_path / "jobs" / damaged / "state.json").write_text("{")
    code, out, err = run(capsys, "jobs", action, absent, ids[0], damaged, ids[2], "--json")
    bad = [absent] if action == "delete" else [absent, damaged]
    assert code == 1 and [id in line for id, line in zip(bad, err.splitlines(), strict=True)]
    assert all(line.startswith("error: ") for line in err.splitlines())
    views = {view.id: view.status for view in list_jobs()}
    expected = {"show": "queued", "cancel": "cancelled", "resume": "queued", "delete": None}
    for id in (ids[0], ids[2]):
        assert views.get(id) == expected[action]
        assert action == "delete" or out.count(f'"id": "{id}"') == 1


def test_the_picture_shows_where_the_solvers_differ():
    first, second = torch.tensor([4.0, 1.0, 9.0, 0.25]), torch.tensor([4.0, 9.0, 0.0, 0.0])
    scores = [Score("one", None, first), Score("other", None, second)]
    assert most_different(scores, 2).tolist() == [1, 2]  # errors 1 and 3, 3 and 0
    assert most_different(scores, 9).tolist() == [0, 1, 2, 3]
    assert scores[0].rmse == pytest.approx((14.25 / 4) ** 0.5)


@needs_demo
def test_sample_and_compare_draw_pictures(capsys, tmp_path):
    grid, drawn = tmp_path / "grid.png", []
    for seed in ("0", "0", "1"):
        options = ["--count", "4", "--seed", seed, "--out", str(grid), "--json"]
        code, text, _ = run(capsys, "sample", *options)
        assert code == 0 and json.loads(text)["nfe"] == 5 and Image.open(grid).size[0] > 4 * 64
        drawn.append(grid.read_bytes())
    assert drawn[0] == drawn[1] != drawn[2], "the same seed must give the same picture"
    code, *_ = run(capsys, "compare", "--nfe", "5", "--count", "4", "--out", str(grid))
    assert code == 0 and Image.open(grid).size[1] > 3 * 64


LATENTS = ["--model", f"python:{Path(__file__).parents[1] / 'helpers' / 'job_models.py'}:latents"]
FEW = ["--config", "few.toml", "--nfe", "2", "--budget", "1000"]


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


def test_the_summary_needs_no_picture(capsys, few, monkeypatch):
    """Neither memory for it nor a comparison, nor a search for classical solvers."""

    def decode(self, rows, path):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as patch:
        patch.setattr(Comparison, "_save_picture", decode)
        code, text, err = run(capsys, "train", *LATENTS, *FEW, "--json")
        assert code == 0 and json.loads(text)["picture"] is None
        assert "Not enough memory for sample pictures" in err
    monkeypatch.setattr("trainer.comparison.Comparison", None)
    code, text, _ = run(capsys, "train", *LATENTS, *FEW, "--no-picture", "--json")
    summary, score = json.loads(text), load_solver("solver.safetensors").metadata["scores"]["2"]
    assert code == 0 and summary["picture"] is None and not Path("solver.png").exists()
    best = {score["classical_name"]: score["classical"]}
    assert summary["errors"] == {"2": {"S4S": score["rmse"], **best}}
    with open("few.toml", "a") as file:
        file.write('\ninit = "ddim:1:edm"\n')
    code, text, _ = run(capsys, "train", *LATENTS, *FEW, "--no-picture")
    assert code == 0 and "S4S" in text and "classical" not in text


def test_comparisons_use_the_teacher_of_training(capsys, few, monkeypatch):
    """Its calls, its schedule and its ending, by train itself, by compare and by render."""
    with open("few.toml", "a") as file:
        file.write("ending = 0.05\n")
    seen, model = [], latents(None)
    monkeypatch.setattr(Comparison, "save_picture", lambda self, *_: seen.append(self))
    table = named_solver(model, "euler:1:edm", 3, 0.05).table
    assert run(capsys, "train", *LATENTS, *FEW, "--teacher", "euler:1:edm:3")[0] == 0
    pairs = seen[0].pairs
    assert torch.equal(pairs.target, sample(model.denoise, pairs.x, table))
    solver = ["--solver", "solver.safetensors", "--nfe", "2", "--count", "2"]
    assert run(capsys, "compare", *LATENTS, *solver)[0] == 0
    assert [comparison.teacher for comparison in seen] == [table, table]
    assert run(capsys, "render", *LATENTS, *solver, "--out", "sheets")[0] == 0
    assert json.loads(Path("sheets/state.json").read_text())["done"]["teacher"]["nfe"] == 3


def recorded(about, model, ending=0.0):
    """Return the teacher that a file with this metadata gets, and the warnings."""
    table, warnings = named_solver(model, "euler:1:edm", 2, 0.0).table, []
    sigmas = [*(table.sigmas[:-1] + ending), ending]
    pack = SolverPack.of(table.replace(sigmas=sigmas), metadata=about)
    return comparison.recorded_teacher(pack, model, warnings.append), warnings


@pytest.mark.parametrize("config", [{}, {"config": {"teacher": "auto"}}])
def test_the_teacher_that_a_run_chose_is_made_again(config):
    model = latents(None)
    chosen = teacher.default_teacher(model, 12, 0.05, ("dpmpp", 2))
    about = {**config, "teacher": {"nfe": 12, "name": "dpmpp 2, edm"}}
    assert recorded(about, model, 0.05) == (chosen, [])


@pytest.mark.parametrize("said", [None, 5, [], "x", {}, {"model": {"prompts": 5}}])
def test_a_file_without_a_teacher_has_the_default_one(said):
    model = latents(None)
    assert recorded({"config": said}, model) == (teacher.default_teacher(model), [])


def test_a_file_of_many_tables_is_compared_in_part(capsys):
    """Anyone may have written it; whoever names a step count gets it."""
    sigmas = {nfe: schedule("edm", nfe, latents(None)) for nfe in (*range(1, 20), 101, 300)}
    tables = [classical_table("euler", nodes, order=1, space="ve") for nodes in sigmas.values()]
    pack = SolverPack.of(*tables)
    assert list(compare.chosen(pack, ())) == list(range(1, 13))
    assert "9 step counts of the file are not compared" in capsys.readouterr().err
    assert compare.chosen(pack, [300]) == [300]
    with pytest.raises(TableError, match="Name one with --nfe"):
        compare.chosen(SolverPack.of(*tables[-2:]), ())
    with pytest.raises(TableError):
        compare.chosen(pack, [50])


UNTRUSTED = [
    *({"config": {"teacher": text}} for text in (1, "", "x", "heun:2:edm:7.5", [["euler"]])),
    *(
        {"config": {"teacher": f"{solver}:{calls}"}}
        for solver in ("euler:1:gits", "euler:1:dmn", "magic:1:edm", "heun:3:edm", "euler:0:edm")
        for calls in (20, 1000, 0)
    ),
    *({"config": {"teacher": f"euler:1:edm:{calls}"}} for calls in (101, 1000, "9" * 5000, "٣")),
    *({"teacher": {"nfe": nfe, "name": "dpmpp 2, edm"}} for nfe in (10**9, "12", None, True, -1)),
    *({"teacher": {"nfe": 12, "name": name}} for name in ("magic 2, edm", "euler 1, gits", [1])),
]


@pytest.mark.parametrize("about", UNTRUSTED, ids=lambda about: str(about)[:60])
@pytest.mark.parametrize("ending", [0.0, 0.05, 100.0])
def test_a_header_cannot_steer_the_teacher(about, ending):
    """It costs no model call, and the default teacher takes over with a warning."""
    model = latents(None)
    model.denoise = lambda *_: pytest.fail("the model was called")
    found, warnings = recorded(about, model, ending)
    expected = teacher.default_teacher(model, ending=ending if ending < model.sigma_max else 0.0)
    assert found == expected and len(warnings) == 1 and "default one" in warnings[0]


def test_an_ending_that_the_model_cannot_have_is_replaced():
    model = latents(None)
    found, warnings = recorded({}, model, 100.0)
    assert found == teacher.default_teacher(model) and len(warnings) == 1


@pytest.mark.parametrize("name", ["euler 1, gits", "heun 9, edm", "magic 1, edm", 5, ["x"]])
def test_a_header_cannot_steer_the_classical_solver(name, tmp_path, monkeypatch):
    """A whole rendering makes the calls of three tables: the default teacher's and two of 2."""
    model, calls = latents(None), []
    denoise = model.denoise
    model.denoise = lambda x, *rest: calls.append(len(x)) or denoise(x, *rest)
    model.about, model.device = {}, "cpu"
    monkeypatch.setattr("trainer.models.open_model", lambda choice: model)
    table = named_solver(model, "euler:1:edm", 2, 0.0).table
    about = {"scores": {"2": {"classical_name": name}}, "config": {"teacher": "euler:1:gits:100"}}
    pack = SolverPack.of(table, metadata=about)
    warnings = rendering.render(ModelChoice("mixture"), pack, tmp_path, 2, count=1)
    assert len(calls) == 20 + 2 + 2 and len(warnings) == 2 and "UniPC" in warnings[1]


@pytest.mark.parametrize(("options", "seed"), [([], 0), (["--seed", "7"], 7)])
def test_bench_training_trains_with_the_seed_that_it_is_given(monkeypatch, options, seed):
    seeds = []
    record = lambda *_, **options: seeds.append(options["seed"]) or fit(*_, **options)  # noqa: E731
    monkeypatch.setattr(training, "fit", record)
    line = ["bench", "training", "--fresh", "1", "--budget", "600", *options]
    arguments = build_parser("bench").parse_args(line)
    bench = training.Bench(open_model(ModelChoice("mixture")), 2, arguments)
    few = {"samples": 1, "validation": 1, "held_out": 1, "init": "euler:1:edm"}
    assert bench.run("a label", "gauss-newton", **few).final > 0 and seeds == [seed]


def test_bench_engine_measures_ratios_and_needs_a_checkout(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "ROUNDS", 3)
    monkeypatch.setattr(engine, "SHAPES", ((1, 4, 8, 8),))
    assert run(capsys, "bench", "engine", "--out", str(tmp_path))[0] == 0
    rows = json.loads((tmp_path / "engine.json").read_text())["tables"][0]["rows"]
    assert {row[0]: row[2] for row in rows}["bare Euler loop"] == 1.0
    assert all(row[1] > 0 for row in rows)
    monkeypatch.setattr(bench, "CHECKOUT", tmp_path)
    code, _, error = run(capsys, "bench", "engine")
    assert code == 1 and error == f"error: {bench.MISSING}\n"
