"""S4S in the WebUIs: the sampler under each host's contract, in doubles of the hosts."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest
import torch
from hostile import fill_with_hostile_entries
from webui_hosts import HOSTS, CFGDenoiser, Double, Job, infotext_of, parse_infotext
from webui_models import SHAPE, TIMES, PatchedHolder, reference

from s4s_core import SolverPack, classical_table, sample, save_solver
from s4s_core.app import folders
from s4s_core.errors import HostError, SolverFileError
from s4s_core.hosting import run_in_host
from s4s_core.model import guided_scale

ROOT = Path(__file__).resolve().parents[2]
NFES = (4, 5, 8)


def nodes(steps, space):
    """Noise levels between a model's whole times."""
    if space == "flow":
        return torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    times = torch.linspace(998.37, 3.41, steps, dtype=torch.float64)
    return torch.cat([TIMES.sigma(times), torch.zeros(1, dtype=torch.float64)])


def pack_of(space="ve", solver="ipndm", **about):
    steps = (2, 4) if solver == "dpm-solver" else NFES
    tables = [classical_table(solver, nodes(n, space), 2, space) for n in steps]
    return SolverPack.of(*tables, metadata={"name": "test, with a comma", **about})


def load(host):
    """Run the extension's script as hosts do: not in sys.modules, the folder on the path."""
    path = ROOT / "scripts" / "s4s_sampler.py"
    spec = importlib.util.spec_from_file_location("s4s_sampler.py", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    host.section = module.Section()


@pytest.fixture
def webui(tmp_path, monkeypatch):
    """webui(kind, pack): a host with a pack in the only folder of solvers, and the file chosen."""
    monkeypatch.setenv("S4S_SOLVERS", str(tmp_path))

    def make(kind, pack=None):
        host = Double(kind, monkeypatch)
        host.space = "flow" if host.flow else "ve"
        host.pack = pack or pack_of(host.space)
        save_solver(tmp_path / "a, b.safetensors", host.pack)
        load(host)
        host.section.process(Job(4), "a, b.safetensors")
        return host

    return make


each_host = pytest.mark.parametrize("kind", HOSTS)


def scheduled(host, kind):
    """What a job says of its schedule type; in Classic, the user sets it for all jobs."""
    host.opts.k_sched_type = kind if kind == "Automatic" else kind.lower()
    return {"scheduler": kind}


def own_type(host):
    """The schedule type whose levels the host's samplers use if the user chooses none."""
    return "Simple" if host.flow else "Automatic"


def levels_of(host, job, latent):
    """The levels that the host's own Euler has in a job."""
    kind = own_type(host) if job.scheduler in ("Automatic", "S4S") else job.scheduler
    theirs = Job(job.steps, "Euler", **scheduled(host, kind))
    levels = host.sampler_of(theirs).get_sigmas(theirs, job.steps)
    if latent is None:
        return levels
    return levels[-2 - int(min(job.denoising_strength, 0.999) * job.steps) :]


def gap(host, job, latent=None):
    """The largest difference between the host's samples of a job and the core's."""
    sigmas = levels_of(host, job, latent)
    share = 1 - sigmas[0] if host.flow else 1
    start = sigmas[0].float() * job.noise + (0 if latent is None else share * latent)

    def denoise(x, sigma, cond=None, guidance=None):
        scale = guided_scale(job.cfg_scale, 1.0 if guidance is None else float(guidance[0]))
        return reference(x, sigma, scale, host.space)

    lowest, plain = float(host.wrap().sigmas[0]), job.scheduler != "Karras"
    want = run_in_host(denoise, start.float(), host.pack, sigmas, lowest, guided=True, plain=plain)
    return (host.generate(job, latent) - want).abs().max()


@each_host
@pytest.mark.parametrize("steps", NFES)
def test_a_full_run_gives_what_the_core_gives_at_exact_times(webui, kind, steps):
    host = webui(kind)
    assert gap(host, Job(steps)) < 1e-4
    assert len(host.network.times) == len(host.state.previews) == steps
    assert host.state.sampling_step == steps - 1
    if not host.flow:
        times = torch.stack([called[0] for called in host.network.times])
        assert times.dtype == torch.float32
        assert (times - TIMES.time(nodes(steps, "ve")[:-1])).abs().max() < 1e-2
    assert not host.network._forward_pre_hooks


@each_host
def test_a_model_may_write_into_its_arguments(webui, kind, monkeypatch):
    host = webui(kind)
    clean, ask = host.generate(Job(5)), CFGDenoiser.forward

    def spoiling(self, x, sigma, *rest, **given):
        result = ask(self, x.clone(), sigma.clone(), *rest, **given)
        x.zero_(), sigma.fill_(-1)
        return result

    monkeypatch.setattr(CFGDenoiser, "forward", spoiling)
    assert torch.equal(host.generate(Job(5)), clean)


@each_host
def test_the_hosts_rounded_times_would_miss(webui, kind, monkeypatch):
    """Without the hook, hosts that round miss the core's result: the test above can fail."""
    host = webui(kind)
    from s4s_webui import sampler

    monkeypatch.setattr(sampler, "ROUNDING", -1.0)
    assert (gap(host, Job(5)) < 1e-4) == (kind == "forge-flow")


def guided(pack, multipliers, **more):
    """The pack with guidance: each table takes as many of the multipliers as it has calls."""
    tables = (table.replace(guidance=multipliers[: table.nfe]) for table in pack.tables.values())
    return SolverPack.of(*tables, metadata=pack.metadata, **more)


@each_host
def test_the_solver_sets_the_guidance_of_each_call(webui, kind):
    space = "flow" if kind == "forge-flow" else "ve"
    part = classical_table("ipndm", nodes(8, space)[-4:], 2, space)
    parts = [part.replace(guidance=(1.5, 0.75, 0.0))]
    host = webui(kind, guided(pack_of(space), (0.0, 0.5, 1.0, 2.0, 0.25, 1, 1, 1), parts=parts))
    sampler = host.sampler_of(job := Job(5))
    sampler.sample(job, job.noise)
    assert host.state.scales == [1.0, 2.0, 3.0, 5.0, 1.5]  # 1 + m (3 - 1)
    rows = [len(called) for called in host.network.times]
    assert rows == [2 if host.patched else 4, 4, 4, 4, 4]  # the host's own saving at a scale of 1
    assert sampler.sampler_extra_args["cond_scale"] == job.cfg_scale
    assert not job.comments and gap(host, Job(5)) < 1e-4
    assert gap(host, Job(8, denoising_strength=0.3), torch.zeros(2, *SHAPE)) < 1e-4
    assert host.state.scales[-3:] == [4.0, 2.5, 1.0]


@each_host
def test_the_second_pass_has_its_own_guidance(webui, kind):
    """Forge and its relatives take the job's `hr_cfg` there, whatever the sampler passes."""
    space = "flow" if kind == "forge-flow" else "ve"
    host = webui(kind, guided(pack_of(space, cfg=[3.0, 3.0]), [0.5] * 8))
    own = {"hr_cfg": 7.0} if host.patched else {}
    job = Job(8, is_hr_pass=True, denoising_strength=1, **own)
    host.sampler_of(job).sample_img2img(job, torch.zeros(2, *SHAPE), job.noise, steps=8)
    assert set(host.state.scales) == {4.0 if host.patched else 2.0}  # 1 + 0.5 (cfg - 1)
    assert ("this run has CFG 7" in " ".join(job.comments)) == host.patched
    assert not own or job.hr_cfg == 7


@each_host
def test_where_guidance_cannot_change_the_rest_runs(webui, kind):
    """Multipliers of 1, a CFG of 1, and a host that passes no scale."""
    plain = pack_of("flow" if kind == "forge-flow" else "ve")
    host = webui(kind, plain)
    expected, without = host.generate(Job(5)), host.generate(Job(5, cfg_scale=1))
    host = webui(kind, guided(plain, [1.0] * 8))
    assert torch.equal(host.generate(Job(5)), expected)
    host = webui(kind, guided(plain, [2.0] * 8))
    assert torch.equal(host.generate(Job(5, cfg_scale=1)), without)
    host.passes_scale = False
    assert torch.equal(host.generate(job := Job(5)), expected)
    assert "sets the guidance of each call" in " ".join(job.comments)


@pytest.mark.parametrize("solver", ["dpmpp", "unipc-bh2", "dpm-solver"])
def test_every_family_runs(webui, solver):
    host = webui("forge", pack_of(solver=solver))
    assert gap(host, Job(8)) < 1e-4
    host.network.times.clear()
    assert gap(host, Job(8, denoising_strength=0.5), torch.zeros(2, *SHAPE)) < 1e-4
    assert len(host.network.times) == 5


@each_host
@pytest.mark.parametrize("steps, strength", [(8, 0.3), (8, 0.6), (8, 1.0), (40, 0.6)])
def test_img2img_gives_what_the_core_gives(webui, kind, steps, strength):
    job = Job(steps, denoising_strength=strength)
    assert gap(webui(kind), job, torch.full((2, *SHAPE), 0.3)) < 1e-4
    assert not job.comments


def course(host, hires, *settings, **more):
    """(first level, calls) of img2img or the second pass of hires fix, and the samples.

    The progress must end at its end.
    """
    job, state = Job(*settings, is_hr_pass=hires, **more), host.state
    sampler, latent = host.sampler_of(job), torch.full((2, *SHAPE), 0.3)
    result = sampler.sample_img2img(job, latent, job.noise, job.steps if hires else None)
    assert len(state.levels) == state.sampling_steps == state.sampling_step + 1
    assert not job.comments
    return (state.levels[0], len(state.levels)), result


@each_host
@pytest.mark.parametrize("steps", [6, 20])
@pytest.mark.parametrize("strength", [0.2, 0.4, 0.7])
@pytest.mark.parametrize("hires", [False, True])
def test_below_full_strength_it_begins_where_euler_does(webui, kind, steps, strength, hires):
    """And makes as many calls, whatever steps the file has and whichever plain type is set."""
    host, results = webui(kind), []
    theirs = {"denoising_strength": strength, "scheduler": own_type(host)}
    expected, _ = course(host, hires, steps, "Euler", **theirs)
    for schedule_type in (own_type(host), "Automatic", "S4S", None):
        found, result = course(host, hires, steps, **theirs | {"scheduler": schedule_type})
        assert found == expected
        results.append(result)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("kind", [kind for kind in HOSTS if kind not in ("classic", "forge-flow")])
@pytest.mark.parametrize("schedule_type", ["Simple", "Uniform"])
def test_types_of_even_times_count_as_automatic(webui, kind, schedule_type):
    host, job = webui(kind), Job(8, scheduler=schedule_type)
    assert gap(host, job) < 1e-4 and not job.comments
    assert host.state.levels == pytest.approx(host.pack[8].call_sigmas)
    theirs = {"denoising_strength": 0.4, "scheduler": schedule_type}
    assert course(host, False, 6, **theirs)[0] == course(host, False, 6, "Euler", **theirs)[0]


@each_host
@pytest.mark.parametrize("latent", [None, torch.full((2, *SHAPE), 0.3)])
def test_levels_that_the_user_chose_run_as_given(webui, kind, latent):
    """Also with steps that the file lacks. A comment says so."""
    host = webui(kind)
    job = Job(6, denoising_strength=0.5, **scheduled(host, "Karras"))
    assert gap(host, job, latent) < 1e-4
    assert host.state.levels == pytest.approx(levels_of(host, job, latent)[:-1].tolist())
    (comment,) = job.comments
    assert "those of the schedule type karras" in comment.lower() and "to Automatic" in comment


@pytest.mark.parametrize("kind", [kind for kind in HOSTS if kind != "classic"])
def test_the_second_pass_has_its_own_schedule_type(webui, kind):
    host, job = webui(kind), Job(8, hr_scheduler="Karras", denoising_strength=0.7)
    first = host.generate(job)
    assert not job.comments
    job.is_hr_pass = True
    host.sampler_of(job).sample_img2img(job, first, job.noise, steps=5)
    assert "Karras" in "".join(job.comments)
    about = job.extra_generation_params
    assert about["S4S NFE"] == 8 and about["S4S hires NFE"] == 5


@each_host
def test_inpainting_keeps_what_the_mask_protects(webui, kind):
    host = webui(kind)
    mask = torch.zeros(1, 1, *SHAPE[1:])
    mask[..., :2] = 1
    job = Job(8, denoising_strength=0.8, mask=mask, nmask=1 - mask)
    latent = torch.full((2, *SHAPE), 0.3)
    found = host.generate(job, latent)
    assert torch.equal(found[..., :2], latent[..., :2])
    assert (found[..., 2:] - latent[..., 2:]).abs().max() > 1e-2


@each_host
def test_a_batch_gives_the_same_pictures_as_single_runs(webui, kind):
    host, job = webui(kind), Job(5, batch=3)
    together = host.generate(job)
    for row in range(3):
        alone = Job(5, batch=1, noise=job.noise[row : row + 1])
        assert (host.generate(alone) - together[row]).abs().max() < 1e-5


@each_host
def test_an_interrupt_returns_the_last_preview(webui, kind):
    host, sampled = webui(kind), []
    sampler = host.sampler_of(job := Job(8))

    def stop(d):
        sampled.append(d)
        host.state.interrupted = d["i"] == 2

    sampler.callback_state = stop
    found = sampler.sample(job, job.noise)
    assert len(sampled) == 3 and torch.equal(found, host.state.previews[-1])
    assert not host.network._forward_pre_hooks
    assert set(sampled[0]) == {"x", "i", "sigma", "sigma_hat", "denoised"}


@pytest.mark.parametrize(
    "steps, latent, calls", [(8, None, (4, 4)), (40, torch.zeros(2, *SHAPE), (11, 10))]
)
def test_the_refiner_takes_over_halfway(webui, steps, latent, calls):
    host = webui("forge")
    first, host.other_model, host.switch_at = host.network, PatchedHolder(flow=False), 0.5
    host.other_model.sd_checkpoint_info = host.model.sd_checkpoint_info
    host.generate(Job(steps, denoising_strength=0.5), latent)
    assert host.other_model is None
    assert (len(first.times), len(host.network.times)) == calls
    if latent is None:
        exact = TIMES.time(nodes(8, "ve")[:-1])
        assert (host.network.times[-1][0] - exact[-1]).abs() < 1e-2


@each_host
def test_what_cannot_run_is_refused(webui, kind):
    host = webui(kind)
    with pytest.raises(HostError, match="no table for 6 steps.*4, 5, 8"):
        host.generate(Job(6))
    host.section.before_process(Job(4))  # a job without settings keeps the choice
    host.section.process(Job(4))
    assert host.generate(Job(4)).isfinite().all()
    for nothing in ("None", "", None):
        host.section.process(Job(4), "a, b.safetensors")
        host.section.process(Job(4), nothing)
        with pytest.raises(HostError, match="No S4S solver is chosen"):
            host.generate(Job(4))
    host.section.process(Job(4), ["a, b.safetensors"])  # from the host's API
    with pytest.raises(SolverFileError, match="There is no solver file"):
        host.generate(Job(4))


def test_rising_levels_are_refused(webui):
    with pytest.raises(HostError, match="unsampling is not supported"):
        webui("a1111").generate(Job(4, scheduler="Rising"))


def test_a_solver_of_another_space_is_refused(webui):
    with pytest.raises(HostError, match="flow models"):
        webui("a1111", pack_of("flow")).generate(Job(4))


@pytest.mark.parametrize("kind", [kind for kind in HOSTS if kind not in ("classic", "forge-flow")])
def test_the_schedule_serves_other_samplers(webui, kind):
    host, job = webui(kind), Job(5, sampler_name="Euler", scheduler="S4S")
    euler = classical_table("euler", nodes(5, "ve"), 1, "ve")
    ours = sample(reference, (nodes(5, "ve")[0] * job.noise).float(), euler)
    assert (host.generate(job) - ours).abs().max() < 0.05  # the host's own rounded times


@each_host
def test_registering_again_changes_nothing(webui, kind):
    host = webui(kind)
    load(host)
    names = [each.name for each in host.samplers.samplers]
    assert names == ["Euler", "S4S"]
    assert host.samplers.all_samplers_map["S4S"] is host.samplers.samplers[1]
    if kind != "classic":
        labels = [each.label for each in host.schedulers.schedulers]
        assert labels[-1] == "S4S" and labels.count("S4S") == 1
        assert host.samplers.get_sampler_and_scheduler("Euler", "S4S") == ("Euler", "S4S")


def test_differences_from_training_are_warned_about(webui):
    about = {"cfg": [7.0, 7.0], "resolution": [512, 512], "model": {"name": "big", "hash": "cd"}}
    webui("forge", pack_of(**about)).generate(job := Job(4))
    text = " ".join(job.comments)
    assert "trained for CFG 7, this run has CFG 3" in text
    assert "trained at 512x512, this run is 32x32" in text
    assert "trained for the model big, this one is tiny" in text
    about = {"cfg": [3.0, 3.0], "resolution": [32, 32], "model": {"name": "tiny", "hash": "ab"}}
    webui("forge", pack_of(**about)).generate(job := Job(4))
    assert not job.comments


@each_host
def test_infotext_restores_the_solver(webui, kind):
    host, job = webui(kind), Job(5)
    picture = host.generate(job)
    found = parse_infotext(infotext_of(job))
    assert found["S4S solver"] == "a, b.safetensors"
    assert found["S4S hash"] == host.pack.digest[:12] and found["S4S NFE"] == "5"
    host.section.process(Job(4), "None")
    solver = ui_of(host)
    ((component, label),) = host.section.infotext_fields
    assert component is solver and label in host.section.paste_field_names
    again = Job(int(found["Steps"]), sampler_name=found["Sampler"])
    host.section.process(again, found[label])
    assert torch.equal(host.generate(again), picture)


def ui_of(host):
    """The section's list of solvers, built with the installed Gradio."""
    import gradio as gr

    with gr.Blocks():
        (solver,) = host.section.ui(is_img2img=False)
    return solver


def test_the_section_lists_describes_and_refreshes(webui, tmp_path):
    host = webui("forge", pack_of(model={"name": "<b>bold</b>", "hash": "cd"}, cfg=[5.0, 9.0]))
    from s4s_webui import section

    solver, broken = ui_of(host), tmp_path / "broken.safetensors"
    assert solver.value == "a, b.safetensors" and solver.do_not_save_to_config
    text = section.solver_html("a, b.safetensors")
    assert "&lt;b&gt;bold&lt;/b&gt;" in text and "4, 5, 8" in text and "5 to 9" in text
    assert "this one is tiny" in text
    broken.write_bytes(b"no solver")
    update, text = section.refreshed("broken.safetensors")
    assert update["choices"] == ["None", "a, b.safetensors", "broken.safetensors"]
    assert "broken.safetensors" in text
    broken.unlink()
    update, text = section.refreshed("broken.safetensors")
    assert update["value"] == "None" and "choose one" in text
    assert "There is no solver file" in section.solver_html("gone.safetensors")


def test_hostile_entries_disable_neither_list_nor_section(webui, tmp_path):
    host = webui("forge")
    from s4s_webui import section

    good = tmp_path / "a, b.safetensors"
    listed, bad = fill_with_hostile_entries(tmp_path, good.read_bytes())
    ui_of(host)
    update, text = section.refreshed("None")
    assert set(update["choices"]) == listed | {"None", good.name}
    assert text.count("<p>⚠ ") == bad and text.encode()


def test_solvers_are_found_among_the_hosts_models(webui, monkeypatch):
    webui("forge")
    monkeypatch.delenv("S4S_SOLVERS")
    assert folders.solver_folders()[0] == Path("/host/models/s4s_solvers")


def test_the_axis_of_the_plot(webui):
    """X/Y/Z plot: one axis, which overrides the section's choice."""
    host = webui("a1111")

    class AxisOption:
        def __init__(self, label, type, apply, confirm=None, choices=None):
            self.label, self.apply, self.confirm, self.choices = label, apply, confirm, choices

    plot = types.SimpleNamespace(axis_options=[], AxisOption=AxisOption)
    host.scripts.scripts_data[:] = [types.SimpleNamespace(module=m) for m in (sys, plot)]
    for _ in range(2):
        host.before_ui[0]()
    (axis,) = plot.axis_options
    assert axis.label == "S4S solver" and axis.choices() == ["None", "a, b.safetensors"]
    axis.confirm(None, ["a, b.safetensors"])
    with pytest.raises(RuntimeError, match="no S4S solver 'x'"):
        axis.confirm(None, ["x"])
    with pytest.raises(RuntimeError) as caught:
        axis.confirm(None, ["\x1b[2J" + "x" * 9999])
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200
    job = Job(4)
    axis.apply(job, "a, b.safetensors", [])
    host.section.process(job, "None")
    assert host.generate(job).isfinite().all()


@pytest.mark.parametrize("kind", ["a1111", "forge", "reforge", "classic"])
def test_training_frees_the_gpu_and_the_host_gets_its_model_back(webui, kind):
    host = webui(kind)
    from s4s_webui.tab import WebUIHost

    WebUIHost().before_training()
    assert host.device == "cpu"
    host.section.before_process(Job(4), "None")
    assert host.device == ("cuda" if kind == "a1111" else "cpu")  # the others load on demand


def test_the_tab_shows_the_panel_or_why_not(webui, monkeypatch):
    host = webui("forge")
    from s4s_webui import tab

    built = types.ModuleType("trainer.panel")
    built.build = lambda panel_host: f"the panel in a {type(panel_host).__name__}"
    monkeypatch.setitem(sys.modules, "trainer.panel", built)
    assert host.tabs[0]() == [("the panel in a WebUIHost", "S4S", "s4s")]

    def fails(panel_host):
        raise RuntimeError("no <gradio> here")

    built.build = fails
    page = tab.page()
    (text,) = [block.value for block in page.blocks.values() if hasattr(block, "value")]
    assert "no &lt;gradio&gt; here" in text and "s4s.py panel" in text


def test_sheets_of_pictures_with_the_hosts_old_pillow(monkeypatch):
    """A1111, Forge and Classic pin Pillow 9.5, where the default font takes no size."""
    from PIL import ImageFont

    from s4s_core.app.pictures import Row, sheet

    made = ImageFont.load_default()
    monkeypatch.setattr(ImageFont, "load_default", lambda: made)
    assert sheet([Row("a row", torch.zeros(2, 3, 8, 8))]).size[1] > 16
