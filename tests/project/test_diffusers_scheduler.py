"""S4SScheduler: in every pipeline the same as the core's own loop."""

from contextlib import contextmanager, nullcontext

import pytest
import tiny_pipelines as tiny
import torch
from problems import PROBLEMS

from s4s_core import classical_table, fit, sample, save_solver, schedule
from s4s_core.errors import HostError, ModelError, S4SError, SolverFileError, TableError
from s4s_core.sampling import Cursor, advance, call_vectors, compiled, evaluate
from s4s_core.spaces import DiscreteTimes
from s4s_core.table import SolverPack
from s4s_core.teacher import default_teacher
from trainer.diffusers_scheduler import S4SScheduler
from trainer.models import open_model
from trainer.models.prediction import network_input

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:diffusers"),
    pytest.mark.filterwarnings("ignore:.*torch_dtype:FutureWarning"),
]

TABLES = {
    "ve": [("ipndm", 3), ("dpmpp", 2), ("unipc-bh2", 3), ("dpm-solver", 2), ("heun", 2)],
    "flow": [("ipndm", 3), ("unipc-bh2", 3), ("dpm-solver", 2)],
}
CASES = [(space, *case) for space, cases in TABLES.items() for case in cases]


def learned(name, order, nodes, space):
    """A table with call times and coefficients of its own, as training leaves it."""
    table = classical_table(name, nodes, order=order, space=space)
    calls = table.call_sigmas.copy()
    calls[1:] *= 0.98
    coefficients = {key: array * 1.01 for key, array in table.coefficients.items()}
    return table.replace(call_sigmas=calls, **coefficients)


def written(path, *tables):
    save_solver(path, SolverPack.of(*tables))
    return str(path)


@pytest.fixture
def case(request, tmp_path):
    """(problem, table, scheduler) of a space, a solver and an order, at 6 calls."""
    space, name, order = request.param
    problem = PROBLEMS[space]
    steps = 6 // order if name in ("dpm-solver", "heun") else 6
    nodes = schedule("logsnr", steps, problem.model)
    if space == "ve":  # the problem's levels, within what the discrete times reach
        nodes = nodes * (DiscreteTimes.scaled_linear().sigma_max / nodes[0])
    table = learned(name, order, nodes, space)
    solver = written(tmp_path / "solver.safetensors", table)
    scheduler = S4SScheduler(solver=solver, prediction_type="sample", **tiny.BETAS)
    scheduler.set_timesteps(table.nfe)
    return problem, table, scheduler


def drive(scheduler, problem, x, begin=0, change=None):
    """What a pipeline does, with a denoiser for a network."""
    scheduler.set_begin_index(begin)
    flow = scheduler.pack.space == "flow"
    for call, time in list(enumerate(scheduler.timesteps))[begin:]:
        sigma = torch.tensor(scheduler.table.call_sigmas[call])
        output = problem.model.denoise(x, sigma.expand(len(x)))
        if flow:
            output = (x - output) / sigma.to(x)
        else:
            given = scheduler.scale_model_input(x, time)
            assert torch.allclose(given, network_input("ve", x, sigma), atol=1e-3)
        x = scheduler.step(output, time, x).prev_sample
        x = x if change is None else change(call, x)
    return x


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_from_any_start_it_is_the_loop(case):
    problem, table, scheduler = case
    x = problem.x / problem.x.std() * table.sigmas[0]
    expected = sample(problem.model.denoise, x, table)
    assert torch.allclose(drive(scheduler, problem, x), expected, rtol=1e-9, atol=1e-9)
    scheduler.set_timesteps(table.nfe)
    picture = problem.model.denoise(problem.x, torch.full((len(x),), float(table.sigmas[0])))
    noise = torch.randn(picture.shape, generator=torch.Generator().manual_seed(0)).to(picture)
    begin, level = 2 * table.nfe_per_step, float(table.sigmas[2])
    scheduler.set_begin_index(begin)
    x = scheduler.add_noise(picture, noise, scheduler.timesteps[begin : begin + 1])
    scale = 1 - level if table.space == "flow" else 1.0
    assert torch.allclose(x, scale * picture + level * noise)
    assert torch.equal(scheduler.scale_noise(picture, scheduler.timesteps[:1], noise), x)
    expected = sample(problem.model.denoise, x, table, start=2)
    assert torch.allclose(drive(scheduler, problem, x, begin), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_a_network_may_reuse_its_result_and_a_pipeline_its_latents(case):
    problem, table, scheduler = case
    x = problem.x / problem.x.std() * table.sigmas[0]
    expected = drive(scheduler, problem, x)
    scheduler.set_timesteps(table.nfe)
    step, output = scheduler.step, torch.empty_like(x)

    def reusing(result, time, latents):
        found = step(output.copy_(result), time, latents)
        output.zero_(), latents.zero_()
        return found

    scheduler.step = reusing
    assert torch.equal(drive(scheduler, problem, x.clone()), expected)


@pytest.mark.parametrize("case", [("ve", "ipndm", 3), ("ve", "heun", 2)], indirect=True)
def test_half_precision_keeps_its_own_state(case):
    """Between calls the state is not rounded to the pipeline's precision, as in the core."""
    problem, table, scheduler = case
    x = (problem.x / problem.x.std() * table.sigmas[0]).bfloat16()
    expected = sample(problem.model.denoise, x, table)
    result = drive(scheduler, problem, x)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, expected)


@pytest.mark.parametrize(
    "case", [("ve", "dpmpp", 2), ("ve", "heun", 2), ("flow", "ipndm", 3)], indirect=True
)
def test_what_a_pipeline_changes_is_gone_on_from(case):
    """Inpainting pipelines put the kept part back after every step; here a step is halved."""
    problem, table, scheduler = case
    x = problem.x / problem.x.std() * table.sigmas[0]
    result = drive(scheduler, problem, x, change=lambda call, x: x / 2 if call == 3 else x)
    program, cursor = compiled(table), Cursor(x, x)
    for call, sigma in enumerate(call_vectors(program.sigmas, x)):
        cursor, _ = evaluate(program, call, cursor, problem.model.denoise, sigma)
        cursor = advance(program, call, cursor)
        if call == 3:
            cursor = cursor._replace(state=cursor.state / 2, point=cursor.point / 2)
    assert torch.allclose(result, cursor.point, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", [("ve", "ipndm", 3)], indirect=True)
def test_noise_for_inpainting_follows_the_run(case):
    problem, table, scheduler = case
    noise, picture = torch.ones_like(problem.x), torch.zeros_like(problem.x)
    for call in (3, 4):
        x = scheduler.add_noise(picture, noise, scheduler.timesteps[call : call + 1])
        assert torch.allclose(x, noise * table.sigmas[call])
        scheduler.scale_model_input(x, scheduler.timesteps[call])
        scheduler.step(x, scheduler.timesteps[call], x)
        assert scheduler.step_index == call + 1


GUIDANCE = [0.0, 1.5, 0.5, 1.0, 2.0]


@contextmanager
def guiding(kind, pipe, table):
    """The scheduler's `guiding`; Flux says that it cannot change its scale."""
    cannot = table.guidance is not None and kind in ("flux", "schnell")
    said = pytest.warns(UserWarning, match="cannot change its") if cannot else nullcontext()
    with said, pipe.scheduler.guiding(pipe):
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("pipelines")


@pytest.fixture(scope="module", params=tiny.KINDS)
def opened(request, folders):
    pipe, folder = tiny.save(request.param, folders)
    return request.param, pipe, open_model(tiny.choice(folder))


def test_pipelines_train_save_load_and_sample(opened, tmp_path):
    """Two iterations of training, then the pipeline with its solver is the core's result."""
    kind, pipe, model = opened
    small = {"samples": 2, "validation": 2, "held_out": 2, "batch": 8, "starts": 1}
    teacher = default_teacher(model, 5)
    result = fit(model, 3, budget=200, init="ipndm:2:uniform", teacher=teacher, **small)
    save_solver(tmp_path / "solver.safetensors", result.pack)
    moved = learned("unipc-bh2", 2, schedule("uniform", 5, model), model.space)
    moved = moved.replace(guidance=GUIDANCE)
    written(tmp_path / "moved.safetensors", moved)
    noise = torch.randn(2, *model.shape, generator=torch.Generator().manual_seed(3))
    for name, table in (("solver", result.pack[3]), ("moved", moved)):
        path = str(tmp_path / f"{name}.safetensors")
        pipe.scheduler = S4SScheduler.from_config(pipe.scheduler.config, solver=path)
        with guiding(kind, pipe, table):
            shown = tiny.run(kind, pipe, noise, table.nfe)
        assert pipe.guidance_scale == tiny.CFG
        if kind == "schnell":
            table = table.replace(guidance=None)
        with torch.no_grad():
            start, cond = noise * table.sigmas[0], torch.tensor([0, 1])
            expected = sample(model.denoise, start, table, cond)
        assert (shown - expected).abs().max() < 1e-5 * expected.abs().max()


IMAGE_TO_IMAGE = {
    "sd1": "StableDiffusionImg2ImgPipeline",
    "sdxl": "StableDiffusionXLImg2ImgPipeline",
    "sd3": "StableDiffusion3Img2ImgPipeline",
    "flux": "FluxImg2ImgPipeline",
}


def test_image_to_image(opened, tmp_path):
    """Strength 0.6 of 5 steps is the rest of the table from its third node on, guidance too."""
    kind, pipe, model = opened
    if kind not in IMAGE_TO_IMAGE:
        pytest.skip("no type of its own")
    table = learned("ipndm", 2, schedule("uniform", 5, model), model.space)
    table = table.replace(guidance=GUIDANCE)
    solver = written(tmp_path / "solver.safetensors", table)
    pipe.scheduler = S4SScheduler.from_config(pipe.scheduler.config, solver=solver)
    changing = getattr(tiny.diffusers, IMAGE_TO_IMAGE[kind])(**pipe.components)
    changing.set_progress_bar_config(disable=True)
    seen, add_noise = {}, pipe.scheduler.add_noise

    def listen(samples, noise, times):
        seen["x"] = add_noise(samples, noise, times)
        return seen["x"]

    pipe.scheduler.add_noise = listen
    picture = torch.rand(2, 3, tiny.SIZE, tiny.SIZE, generator=torch.Generator().manual_seed(1))
    options = {} if kind == "flux" else {"negative_prompt": [tiny.NEGATIVE] * 2}
    if kind in ("sd3", "flux"):
        options |= {"width": tiny.SIZE, "height": tiny.SIZE}
    options |= {"strength": 0.6, "num_inference_steps": 5, "guidance_scale": tiny.CFG}
    options |= {"output_type": "latent", "generator": torch.Generator().manual_seed(2)}
    with guiding(kind, changing, table):
        shown = changing(list(tiny.PROMPTS), image=picture, **options).images
    if kind == "flux":
        shown = pipe._unpack_latents(shown, tiny.SIZE, tiny.SIZE, pipe.vae_scale_factor)
    with torch.no_grad():
        expected = sample(model.denoise, seen["x"], table, torch.tensor([0, 1]), start=2)
    assert (shown - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.fixture
def guided(folders, tmp_path):
    """guided(guidance): a function that runs a pipeline with these multipliers at 5 calls.

    It takes options of the pipeline's, and has the pipeline as an attribute.
    """
    pipe = tiny.build("sd1", folders / "tokenizers")
    noise = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(3))
    nodes = torch.tensor([14.6, 5.0, 2.0, 1.0, 0.2, 0.0])

    def make(guidance):
        table = learned("ipndm", 2, nodes, "ve").replace(guidance=guidance)
        solver = written(tmp_path / "guided.safetensors", table)
        pipe.scheduler = S4SScheduler.from_config(pipe.scheduler.config, solver=solver)

        def run(cfg=tiny.CFG, **options):
            options |= {"width": tiny.SIZE, "height": tiny.SIZE, "output_type": "latent"}
            options |= {"num_inference_steps": 5, "guidance_scale": cfg}
            return pipe(list(tiny.PROMPTS), latents=noise, **options).images

        return run

    make.pipe = pipe
    return make


def test_each_call_has_its_scale_and_the_pipeline_gets_its_own_back(guided):
    pipe, run, scales = guided.pipe, guided(GUIDANCE), []

    def listen(pipe, step, time, tensors):
        scales.append(pipe.guidance_scale)
        if len(scales) == 9:
            raise KeyboardInterrupt
        return tensors

    with pipe.scheduler.guiding(pipe):
        first = run(callback_on_step_end=listen)
        assert scales == [5.5, 2.5, 4.0, 7.0, 4.0]  # of the calls after each: 1 + m (4 - 1)
        assert pipe.guidance_scale == tiny.CFG
        assert torch.equal(run(), first) and not torch.equal(run(cfg=5.0), first)
    with pytest.raises(KeyboardInterrupt), pipe.scheduler.guiding(pipe):
        run(callback_on_step_end=listen)
    assert scales[-1] == 7.0 and pipe.guidance_scale == tiny.CFG


def test_without_guiding_it_warns_once_and_guidance_stays_as_it_is(guided, recwarn):
    plain, off = guided(None)(), guided(None)(cfg=1.0)
    assert not recwarn.list
    run = guided(GUIDANCE)
    assert torch.equal(run(), plain) and torch.equal(run(), plain)
    assert [str(w.message)[:30] for w in recwarn.list] == ["This solver sets the guidance "]
    with guided.pipe.scheduler.guiding(guided.pipe):
        assert not torch.equal(run(), plain)
        assert torch.equal(run(cfg=1.0), off)
    run = guided([1.0] * 5)
    with guided.pipe.scheduler.guiding(guided.pipe):
        assert torch.equal(run(), plain)
    assert len(recwarn.list) == 1


def test_times_are_continuous(tmp_path):
    times = DiscreteTimes.scaled_linear()
    nodes = torch.cat([times.sigma(torch.tensor([999.0, 812.4, 100.7])), torch.zeros(1)]).double()
    solver = written(tmp_path / "s.safetensors", classical_table("euler", nodes, space="ve"))
    scheduler = S4SScheduler(solver=solver, **tiny.BETAS)
    assert torch.allclose(scheduler.timesteps, torch.tensor([999.0, 812.4, 100.7]), atol=1e-2)
    assert scheduler.init_noise_sigma == pytest.approx(times.sigma_max)


@pytest.fixture
def two(tmp_path):
    """Paths of an ve and of a flow solver."""
    ve = learned("ipndm", 2, torch.tensor([14.6, 3.0, 1.0, 0.2, 0.0]), "ve")
    flow = learned("ipndm", 2, torch.tensor([1.0, 0.8, 0.5, 0.2, 0.0]), "flow")
    return [written(tmp_path / f"{t.space}.safetensors", t) for t in (ve, flow)]


@pytest.mark.parametrize("kind, wrong", [("sd1", 1), ("sd3", 0), ("flux", 0)])
def test_a_solver_for_other_models_is_refused(kind, wrong, two, folders):
    pipe = tiny.build(kind, folders / "tokenizers")
    pipe.scheduler = S4SScheduler.from_config(pipe.scheduler.config, solver=two[wrong])
    channels = 4
    with pytest.raises(HostError, match="This solver is for"):
        tiny.run(kind, pipe, torch.zeros(2, channels, 8, 8), 4)


def test_errors(two, tmp_path, monkeypatch):
    monkeypatch.setenv("S4S_SOLVERS", str(tmp_path))
    scheduler = S4SScheduler(solver="ve.safetensors", **tiny.BETAS)
    with pytest.raises(TableError, match="no table for 7 steps. Choose one of 4"):
        scheduler.set_timesteps(7)
    with pytest.raises(SolverFileError, match="no solver file 'nothing.safetensors'"):
        S4SScheduler(solver="nothing.safetensors")
    with pytest.raises(ModelError, match="predict 'magic'"):
        S4SScheduler(solver=two[0], prediction_type="magic")
    heun = classical_table("heun", torch.tensor([14.6, 1.0, 0.1, 0.0]), space="ve")
    scheduler = S4SScheduler(solver=written(tmp_path / "heun.safetensors", heun), **tiny.BETAS)
    scheduler.set_begin_index(1)
    with pytest.raises(S4SError, match="must begin at a multiple of 2 calls, not at 1"):
        scheduler.scale_model_input(torch.zeros(1, 4, 8, 8), scheduler.timesteps[1])


def test_a_scheduler_takes_any_configuration_and_is_saved_with_its_solver(two, tmp_path):
    for name in ("PNDMScheduler", "DDIMScheduler", "UniPCMultistepScheduler"):
        other = getattr(tiny.diffusers, name)(**tiny.BETAS, prediction_type="v_prediction")
        scheduler = S4SScheduler.from_config(other.config, solver=two[0])
        assert scheduler.prediction == "v_prediction"
        assert scheduler.times.sigma_max == pytest.approx(14.6146, rel=1e-4)
    scheduler.save_pretrained(tmp_path / "saved" / "scheduler")
    again = S4SScheduler.from_pretrained(tmp_path / "saved", subfolder="scheduler")
    assert again.pack == scheduler.pack and again.prediction == "v_prediction"
    assert torch.equal(again.timesteps, scheduler.timesteps) and len(again) == 1000
