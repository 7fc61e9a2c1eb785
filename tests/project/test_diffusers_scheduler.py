"""S4SScheduler: in every pipeline the same as the core's own loop."""

from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import tiny_pipelines as tiny
import torch
from problems import PROBLEMS

from s4s_core import classical_table, fit, sample, save_solver, schedule
from s4s_core.errors import HostError, ModelError, S4SError, SolverFileError, TableError
from s4s_core.parts import part_table, stretched
from s4s_core.sampling import Cursor, advance, call_vectors, compiled, evaluate
from s4s_core.spaces import DiscreteTimes
from s4s_core.strength import Below
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


def written(path, *tables, parts=()):
    save_solver(path, SolverPack.of(*tables, parts=parts))
    return str(path)


def even_level(space, left):
    """The noise level where that share of evenly spaced times is left; unshifted in flow models."""
    time = torch.tensor(1000 * left - 1, dtype=torch.float64)
    return left if space == "flow" else float(DiscreteTimes.scaled_linear().sigma(time))


def noised(space, level, picture, noise):
    return (1 - level if space == "flow" else 1.0) * picture + level * noise


@pytest.fixture
def case(request, tmp_path):
    """(problem, table, scheduler) of a space, a solver and an order, at 6 calls; Heun's has 5.

    The pack also has a part for all but 2 of them, trained from a little above where they begin.
    """
    space, name, order = request.param
    problem = PROBLEMS[space]
    steps = 6 // order if name in ("dpm-solver", "heun") else 6
    nodes = schedule("logsnr", steps, problem.model)
    if space == "ve":  # the problem's levels, within what the discrete times reach
        nodes = nodes * (DiscreteTimes.scaled_linear().sigma_max / nodes[0])
    table = learned(name, order, nodes, space)
    begin = steps // 3
    rest = nodes[begin:] * (1.1 * even_level(space, 1 - 2 / table.nfe) / nodes[begin])
    part = learned(name, order, rest, space)
    solver = written(tmp_path / "solver.safetensors", table, parts=[part])
    scheduler = S4SScheduler(solver=solver, prediction_type="sample", **tiny.BETAS)
    scheduler.set_timesteps(table.nfe)
    return problem, table, scheduler


def drive(scheduler, problem, x, begin=0, change=None):
    """What a pipeline does from a call on, with a denoiser for a network."""
    flow = scheduler.pack.space == "flow"
    for call, time in list(enumerate(scheduler.timesteps))[begin:]:
        sigma = torch.tensor(scheduler.table.call_sigmas[call - len(scheduler.timesteps)])
        output = problem.model.denoise(x, sigma.expand(len(x)))
        if flow:
            output = (x - output) / sigma.to(x)
        else:
            given = scheduler.scale_model_input(x, time)
            assert torch.allclose(given, network_input("ve", x, sigma), atol=1e-3)
        x = scheduler.step(output, time, x).prev_sample
        x = x if change is None else change(call, x)
    return x


def putting_back(scheduler, sigmas, begin):
    """What inpainting pipelines do after each call: the noise must be that of the run's node."""

    def put_back(call, x):
        assert scheduler.step_index == call + 1
        ones = torch.ones_like(x)
        kept = scheduler.add_noise(0 * ones, ones, scheduler.timesteps[call : call + 1])
        node = (call + 1 - begin) // scheduler.table.nfe_per_step
        assert torch.allclose(kept, sigmas[node] * ones)
        return x

    return put_back


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_from_any_node_it_is_the_loop(case):
    """Without noise of its own, a run goes on from what another has left."""
    problem, table, scheduler = case
    for node in (0, 2):
        scheduler.set_timesteps(table.nfe)
        begin = node * table.nfe_per_step
        if begin > 0:
            scheduler.set_begin_index(begin)
        x = problem.x / problem.x.std() * table.sigmas[node]
        put_back = putting_back(scheduler, table.sigmas[node:], begin)
        shown = drive(scheduler, problem, x, begin, put_back)
        expected = sample(problem.model.denoise, x, table, start=node)
        assert torch.allclose(shown, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("begin", [1, 2])
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_a_picture_begins_at_even_times(case, begin):
    """The pack has a part for all calls but 2, and none for all but 1."""
    problem, table, scheduler = case
    pack, space = scheduler.pack, table.space
    picture = problem.model.denoise(problem.x, torch.full((len(problem.x),), 1.0))
    noise = torch.randn(picture.shape, generator=torch.Generator().manual_seed(0)).to(picture)
    if begin == 2:  # else the time says it
        scheduler.set_begin_index(begin)
    x = scheduler.add_noise(picture, noise, scheduler.timesteps[begin : begin + 1])
    part = scheduler.table
    level = float(part.sigmas[0])
    assert level == pytest.approx(even_level(space, 1 - begin / table.nfe))
    assert part == part_table(pack, level, pack.ending, table.nfe - begin, 0.01)
    assert (part == stretched(pack.parts[0], level)) == (begin == 2)
    assert torch.allclose(x, noised(space, level, picture, noise))
    assert torch.equal(scheduler.scale_noise(picture, scheduler.timesteps[:1], noise), x)
    assert scheduler.begin_index == begin
    expected = sample(problem.model.denoise, x, part)
    shown = drive(scheduler, problem, x, begin, putting_back(scheduler, part.sigmas, begin))
    assert torch.allclose(shown, expected, rtol=1e-9, atol=1e-9)


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


@contextmanager
def counting(pipe):
    """A list that gets an entry for each call of the pipeline's network."""
    calls, network = [], pipe.unet if hasattr(pipe, "unet") else pipe.transformer
    hook = network.register_forward_hook(lambda *given: calls.append(1))
    try:
        yield calls
    finally:
        hook.remove()


def listening(scheduler):
    """A list that gets (picture, noise, sum) of each time that a pipeline adds noise."""
    seen, add_noise = [], scheduler.add_noise

    def listen(picture, noise, times):
        seen.append((picture, noise, add_noise(picture, noise, times)))
        return seen[-1][-1]

    scheduler.add_noise = listen
    return seen


STOCK = {"ve": "EulerDiscreteScheduler", "flow": "FlowMatchEulerDiscreteScheduler"}


def stock_scheduler(space, folder):
    """The usual scheduler of a saved pipeline, with evenly spaced times."""
    spacing = {"timestep_spacing": "trailing"} if space == "ve" else {}
    kind = getattr(tiny.diffusers, STOCK[space])
    return kind.from_pretrained(folder, subfolder="scheduler", **spacing)


@pytest.mark.parametrize("steps", [6, 20])
@pytest.mark.parametrize("strength", [0.2, 0.4, 0.7])
@pytest.mark.parametrize("opened", tiny.IMAGE_TO_IMAGE, indirect=True)
def test_image_to_image(opened, folders, tmp_path, strength, steps):
    """A run begins where the stock one does, makes as many calls, and is the core's of a part.

    The pack has a whole table of 6 calls, and a part of 8 with guidance, for 0.4 of 20 steps.
    """
    kind, pipe, model = opened
    changing = tiny.sibling(pipe, tiny.IMAGE_TO_IMAGE[kind])
    stock = changing.scheduler = stock_scheduler(model.space, folders / kind)
    even = {"sigmas": np.linspace(1, 1 / steps, steps)} if kind == "sd3" else {}
    with counting(changing) as usual:
        tiny.change(kind, changing, strength, steps, **even)
    first = float(stock.sigmas[stock.begin_index])

    above = schedule("uniform", 8, Below(model, 1.05 * first))
    part = learned("ipndm", 2, above, model.space).replace(guidance=[0.5, 1.5] * 4)
    whole = learned("ipndm", 2, schedule("uniform", 6, model), model.space)
    solver = written(tmp_path / "solver.safetensors", whole, parts=[part])
    scheduler = changing.scheduler = S4SScheduler.from_config(stock.config, solver=solver)
    seen = listening(scheduler)
    with guiding(kind, changing, part), counting(changing) as calls:
        shown = tiny.change(kind, changing, strength, steps)
    assert len(calls) == len(usual)
    level, left = float(scheduler.table.sigmas[0]), 1 - stock.begin_index / steps
    assert level == pytest.approx(first, rel=1e-6 if model.space == "flow" else 5e-3)
    assert model.space == "flow" or level == pytest.approx(even_level("ve", left))

    table = part_table(scheduler.pack, level, 0.0, steps - stock.begin_index, model.sigma_min)
    assert scheduler.table == table
    assert (table.guidance is not None) == ((strength, steps) == (0.4, 20))
    [(picture, noise, x)] = seen
    assert torch.allclose(x, noised(model.space, level, picture, noise))
    if kind == "schnell":
        table = table.replace(guidance=None)
    with torch.no_grad():
        expected = sample(model.denoise, x, table, torch.tensor([0, 1]))
    assert (shown - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("opened", tiny.IMAGE_TO_IMAGE, indirect=True)
def test_a_full_run_needs_its_own_table(opened, two):
    """It is refused before the network is called, or in SD3, which asks for nothing, after once."""
    kind, pipe, model = opened
    solver = two[model.space == "flow"]
    pipe.scheduler = S4SScheduler.from_config(pipe.scheduler.config, solver=solver)
    missing = "no table for 7 steps. Choose one of 4"
    noise = torch.zeros(2, *model.shape)
    with counting(pipe) as calls, pytest.raises(TableError, match=missing):
        tiny.run(kind, pipe, noise, 7)
    assert len(calls) == (kind == "sd3")
    changing = tiny.sibling(pipe, tiny.IMAGE_TO_IMAGE[kind])
    with counting(changing) as calls, pytest.raises(TableError, match=missing):
        tiny.change(kind, changing, 1.0, 7)
    assert not calls


@pytest.mark.parametrize("opened", ["sdxl"], indirect=True)
def test_a_refiner_goes_on_at_the_node_where_its_base_stopped(opened, tmp_path):
    kind, pipe, model = opened
    table = learned("ipndm", 2, schedule("uniform", 5, model), "ve").replace(guidance=GUIDANCE)
    solver = written(tmp_path / "solver.safetensors", table)
    pipe.scheduler = S4SScheduler.from_config(pipe.scheduler.config, solver=solver)
    refiner = tiny.sibling(pipe, tiny.IMAGE_TO_IMAGE[kind])
    start = int((pipe.scheduler.timesteps >= 800).sum())
    assert 0 < start < 4
    noise = torch.randn(2, *model.shape, generator=torch.Generator().manual_seed(3))
    left = noise * table.sigmas[start]
    with refiner.scheduler.guiding(refiner):
        shown = tiny.change(kind, refiner, 0.3, 5, image=left, denoising_start=0.2)
    with torch.no_grad():
        expected = sample(model.denoise, left, table, torch.tensor([0, 1]), start=start)
    assert (shown - expected).abs().max() < 1e-5 * expected.abs().max()
    with counting(refiner) as calls, pytest.raises(TableError, match="no table for 7 steps"):
        tiny.change(kind, refiner, 0.3, 7, image=left, denoising_start=0.2)
    assert not calls


@pytest.mark.parametrize("strength", [0.5, 1.0])
@pytest.mark.parametrize("opened", tiny.INPAINTING, indirect=True)
def test_inpainting_keeps_what_is_not_masked(opened, tmp_path, strength):
    kind, pipe, model = opened
    table = learned("ipndm", 2, schedule("uniform", 6, model), model.space)
    solver = written(tmp_path / "solver.safetensors", table)
    pipe.scheduler = S4SScheduler.from_config(pipe.scheduler.config, solver=solver)
    painting, seen = tiny.sibling(pipe, tiny.INPAINTING[kind]), listening(pipe.scheduler)
    mask = torch.zeros(2, 1, tiny.SIZE, tiny.SIZE)
    mask[..., tiny.SIZE // 2 :] = 1
    shown = tiny.change(kind, painting, strength, 6, mask_image=mask)
    run = pipe.scheduler.table
    assert run.nfe == 6 * strength
    assert len(seen) >= run.nfe - 1  # full strength may begin with noise alone
    for level, (picture, noise, x) in zip(run.sigmas[-1 - len(seen) : -1], seen, strict=True):
        assert torch.allclose(x, noised(model.space, level, picture, noise))
    kept, half = seen[0][0], shown.shape[-1] // 2
    assert torch.equal(shown[..., :half], kept[..., :half])
    assert not torch.isclose(shown[..., half:], kept[..., half:]).any()


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


@pytest.mark.parametrize(
    "config",
    [
        {"shift": 3.0},
        {"shift": 3.0, "use_dynamic_shifting": False},
        {"use_dynamic_shifting": True},
        {"use_dynamic_shifting": True, "time_shift_type": "linear"},
    ],
)
def test_flow_models_have_the_even_times_of_stock(config, two):
    """They are shown where the pack has no table, so that a part may begin at any of them."""
    stock = tiny.diffusers.FlowMatchEulerDiscreteScheduler(**config)
    scheduler = S4SScheduler.from_config(stock.config, solver=two[1])
    for each in (stock, scheduler):
        each.set_timesteps(sigmas=np.linspace(1, 1 / 7, 7), mu=0.7)
    assert torch.allclose(scheduler.timesteps, stock.timesteps)


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
    empty = torch.zeros(1, 4, 8, 8)
    for refused in (
        lambda: scheduler.init_noise_sigma,
        lambda: scheduler.set_begin_index(0),
        lambda: scheduler.scale_model_input(empty, scheduler.timesteps[0]),
        lambda: scheduler.add_noise(empty, empty, scheduler.timesteps[:1]),
    ):
        scheduler.set_timesteps(7)
        with pytest.raises(TableError, match="no table for 7 steps. Choose one of 4"):
            refused()
    with pytest.raises(TableError, match="no table for 0 steps"):
        scheduler.set_timesteps(0)
    scheduler.set_begin_index(7)
    with pytest.raises(HostError, match="begins where the solver ends. Raise the strength"):
        scheduler.add_noise(empty, empty, scheduler.timesteps[7:])
    with pytest.raises(SolverFileError, match="no solver file 'nothing.safetensors'"):
        S4SScheduler(solver="nothing.safetensors")
    with pytest.raises(ModelError, match="predict 'magic'"):
        S4SScheduler(solver=two[0], prediction_type="magic")
    heun = classical_table("heun", torch.tensor([14.6, 1.0, 0.1, 0.0]), space="ve")
    scheduler = S4SScheduler(solver=written(tmp_path / "heun.safetensors", heun), **tiny.BETAS)
    scheduler.set_begin_index(1)
    with pytest.raises(S4SError, match="must begin at a multiple of 2 calls, not at 1"):
        scheduler.scale_model_input(empty, scheduler.timesteps[1])


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
