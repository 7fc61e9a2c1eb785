"""S4S in the WebUIs: the sampler under each host's contract, in doubles of them."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from webui_hosts import (
    GUIDANCE,
    HOSTS,
    SHAPE,
    TIMES,
    Double,
    Job,
    PatchedHolder,
    infotext_of,
    mixture,
    parse_infotext,
    reference,
)

from s4s_core import SolverPack, classical_table, sample, save_solver
from s4s_core.app import folders
from s4s_core.errors import HostError
from s4s_core.hosting import run_in_host

ROOT = Path(__file__).resolve().parents[2]
NFES = (4, 5, 8)


def nodes(steps, space):
    """Levels that lie between a model's whole times."""
    if space == "flow":
        return torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    times = torch.linspace(998.37, 3.41, steps, dtype=torch.float64)
    return torch.cat([TIMES.sigma(times), torch.zeros(1, dtype=torch.float64)])


def pack_of(space="ve", solver="ipndm", **about):
    order = 2
    steps = [n // 2 for n in (4, 8)] if solver == "dpm-solver" else NFES
    tables = [classical_table(solver, nodes(n, space), order, space) for n in steps]
    return SolverPack.of(*tables, metadata={"name": "test, with a comma", **about})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of solver files, the only one that S4S knows."""
    monkeypatch.setenv("S4S_SOLVERS", str(tmp_path))
    return tmp_path


def load(host):
    """Run the extension's script as hosts do: out of sys.modules, the folder on the path."""
    path = ROOT / "scripts" / "s4s_sampler.py"
    spec = importlib.util.spec_from_file_location("s4s_sampler.py", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    host.section = module.Section()
    return host


@pytest.fixture
def webui(folder, monkeypatch):
    """Makes a host with a pack in its folder: webui(kind, pack), the file chosen."""

    def make(kind, pack=None):
        host = Double(kind, monkeypatch)
        save_solver(folder / "a, b.safetensors", pack or pack_of("flow" if host.flow else "ve"))
        load(host)
        host.section.process(Job(4), "a, b.safetensors")
        return host

    return make


def space_of(host):
    return "flow" if host.flow else "ve"


def expected(host, job, pack, latent=None, sigmas=None):
    """The core's own result for the job's noise."""
    space = space_of(host)
    sigmas = torch.tensor(pack[job.steps].sigmas) if sigmas is None else sigmas
    share = 1 - sigmas[0] if space == "flow" else 1
    start = sigmas[0].float() * job.noise + (0 if latent is None else share * latent)

    def denoise(x, sigma):
        return reference(x, sigma, job.cfg_scale, space)

    return run_in_host(denoise, start.float(), pack, sigmas)


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("steps", NFES)
def test_a_full_run_is_the_cores(webui, kind, steps):
    host, job = webui(kind), Job(steps)
    pack = pack_of(space_of(host))
    found = host.generate(job)
    assert (found - expected(host, job, pack)).abs().max() < 1e-4
    assert len(host.network.told) == steps


@pytest.mark.parametrize("kind", [kind for kind in HOSTS if kind != "forge-flow"])
def test_the_network_is_told_exact_times(webui, kind):
    host = webui(kind)
    host.generate(Job(5))
    told = torch.stack([times[0] for times in host.network.told])
    assert told.dtype == torch.float32
    assert (told - TIMES.time(nodes(5, "ve")[:-1])).abs().max() < 1e-2
    assert not host.network._forward_pre_hooks


@pytest.mark.parametrize("kind", HOSTS)
def test_the_hosts_own_times_would_not_do(webui, kind, monkeypatch):
    """Without the hook the hosts that round miss the core's result: the test above can fail."""
    host, job = webui(kind), Job(5)
    from s4s_webui import times

    monkeypatch.setattr(times, "ROUNDING", -1.0)
    missed = (host.generate(job) - expected(host, job, pack_of(space_of(host)))).abs().max()
    assert (missed < 1e-4) == (kind == "forge-flow")


@pytest.mark.parametrize("solver", ["dpmpp", "unipc-bh2", "dpm-solver"])
def test_every_family_runs(webui, solver):
    host, job = webui("forge", pack := pack_of(solver=solver)), Job(8)
    assert (host.generate(job) - expected(host, job, pack)).abs().max() < 1e-4
    host.network.told.clear()
    found = host.generate(Job(8, denoising_strength=0.5), torch.zeros(2, *SHAPE))
    assert found.isfinite().all() and 4 <= len(host.network.told) <= 6


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("strength", [0.3, 0.6, 1.0])
def test_img2img_runs_the_last_nodes(webui, kind, strength):
    host, job = webui(kind), Job(8, denoising_strength=strength)
    latent = torch.full((2, *SHAPE), 0.3)
    pack, left = pack_of(space_of(host)), int(min(strength, 0.999) * 8) + 1
    found = host.generate(job, latent)
    sigmas = torch.tensor(pack[8].sigmas)[-left - 1 :]
    assert (found - expected(host, job, pack, latent, sigmas)).abs().max() < 1e-4
    assert len(host.network.told) == left


@pytest.mark.parametrize("kind", HOSTS)
def test_img2img_at_steps_that_the_file_lacks(webui, kind):
    host, job = webui(kind), Job(20, denoising_strength=0.4)
    found = host.generate(job, torch.zeros(2, *SHAPE))
    assert found.isfinite().all()
    assert 2 <= len(host.network.told) <= 8


@pytest.mark.parametrize("kind", HOSTS)
def test_hires_fix_makes_a_second_pass(webui, kind):
    host, job = webui(kind), Job(8)
    first = host.generate(job)
    job.is_hr_pass, job.denoising_strength = True, 0.7
    second = host.sampler_of(job).sample_img2img(job, first, job.noise, steps=8)
    assert second.isfinite().all() and (second - first).abs().max() > 1e-3
    assert job.extra_generation_params["S4S NFE"] == 8
    assert 3 <= job.extra_generation_params["S4S hires NFE"] <= 8


@pytest.mark.parametrize("kind", HOSTS)
def test_inpainting_keeps_what_the_mask_protects(webui, kind):
    host = webui(kind)
    mask = torch.zeros(1, 1, *SHAPE[1:])
    mask[..., :2] = 1
    job = Job(8, denoising_strength=0.8, mask=mask, nmask=1 - mask)
    latent = torch.full((2, *SHAPE), 0.3)
    found = host.generate(job, latent)
    assert torch.equal(found[..., :2], latent[..., :2])
    assert (found[..., 2:] - latent[..., 2:]).abs().max() > 1e-2


@pytest.mark.parametrize("kind", HOSTS)
def test_a_batch_is_its_pictures(webui, kind):
    host, job = webui(kind), Job(5, batch=3)
    together = host.generate(job)
    for row in range(3):
        alone = Job(5, batch=1, noise=job.noise[row : row + 1])
        assert (host.generate(alone) - together[row]).abs().max() < 1e-5


@pytest.mark.parametrize("kind", HOSTS)
def test_previews_and_steps_are_reported(webui, kind):
    host = webui(kind)
    host.generate(Job(5))
    assert len(host.state.previews) == 5 and host.state.sampling_step == 4


@pytest.mark.parametrize("kind", HOSTS)
def test_an_interrupt_gives_the_last_preview(webui, kind):
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


def test_the_refiner_takes_over(webui):
    """From the switch on another model is called, with its own conditions and exact times."""
    host = webui("forge")
    first, host.other_model = host.network, PatchedHolder(flow=False)
    host.other_model.sd_checkpoint_info = host.model.sd_checkpoint_info
    host.switch_at = 0.5
    host.generate(Job(8))
    assert len(first.told) == 4 and len(host.network.told) == 4
    exact = TIMES.time(nodes(8, "ve")[:-1])
    assert (host.network.told[-1][0] - exact[-1]).abs() < 1e-2


def test_the_refiner_switches_by_the_calls_that_are_made(webui):
    """Entered in the middle, a table may take fewer calls than the host announced."""
    host = webui("forge")
    host.other_model = PatchedHolder(flow=False)
    host.other_model.sd_checkpoint_info = host.model.sd_checkpoint_info
    host.switch_at = 0.5
    host.generate(Job(40, denoising_strength=0.5), torch.zeros(2, *SHAPE))
    assert host.other_model is None


@pytest.mark.parametrize("kind", HOSTS)
def test_steps_that_the_file_lacks_are_refused(webui, kind):
    with pytest.raises(HostError, match="no table for 6 steps. Set steps to one of 4, 5, 8"):
        webui(kind).generate(Job(6))


def test_no_solver_is_refused(webui):
    host = webui("forge")
    host.section.process(Job(4), "None")
    with pytest.raises(HostError, match="No S4S solver is chosen"):
        host.generate(Job(4))


def test_a_job_without_settings_keeps_the_choice(webui):
    host = webui("forge")
    host.section.before_process(Job(4))
    host.section.process(Job(4))
    assert host.generate(Job(4)).isfinite().all()


def test_a_solver_of_another_space_is_refused(webui):
    with pytest.raises(HostError, match="for flow models"):
        webui("a1111", pack_of("flow")).generate(Job(4))


@pytest.mark.parametrize("kind", [kind for kind in HOSTS if kind not in ("classic", "forge-flow")])
def test_the_schedule_serves_other_samplers(webui, kind):
    host, job = webui(kind), Job(5, sampler_name="Euler", scheduler="S4S")
    euler = classical_table("euler", nodes(5, "ve"), 1, "ve")

    def denoise(x, sigma):
        return reference(x, sigma, GUIDANCE)

    ours = sample(denoise, (nodes(5, "ve")[0] * job.noise).float(), euler)
    assert (host.generate(job) - ours).abs().max() < 0.05  # the host's own rounded times


@pytest.mark.parametrize("kind", HOSTS)
def test_registering_again_changes_nothing(webui, kind):
    host = webui(kind)
    load(host)
    names = [each.name for each in host.samplers.samplers]
    assert names == ["Euler", "S4S"]
    assert host.samplers.all_samplers_map["S4S"] is host.samplers.samplers[1]
    if kind != "classic":
        assert [each.label for each in host.schedulers.schedulers] == ["Automatic", "S4S"]
        assert host.samplers.get_sampler_and_scheduler("S4S", "S4S") == ("S4S", "Automatic")
        assert host.samplers.get_sampler_and_scheduler("Euler", "S4S") == ("Euler", "S4S")


def test_what_differs_from_training_is_said(webui):
    about = {"cfg": [7.0, 7.0], "resolution": [512, 512], "model": {"name": "big", "hash": "cd"}}
    host, job = webui("forge", pack_of(**about)), Job(4)
    host.generate(job)
    said = " ".join(job.comments)
    assert "trained for CFG 7, this run has CFG 3" in said
    assert "trained at 512x512, this run is 32x32" in said
    assert "trained for the model big, this one is tiny" in said


def test_nothing_is_said_where_all_agrees(webui):
    about = {"cfg": [3.0, 3.0], "resolution": [32, 32], "model": {"name": "tiny", "hash": "ab"}}
    host, job = webui("forge", pack_of(**about)), Job(4)
    host.generate(job)
    assert not job.comments


@pytest.mark.parametrize("kind", HOSTS)
def test_infotext_makes_the_round_trip(webui, kind, folder):
    host, job = webui(kind), Job(5)
    picture = host.generate(job)
    pack = pack_of(space_of(host))
    found = parse_infotext(infotext_of(job))
    assert found["S4S solver"] == "a, b.safetensors"
    assert found["S4S hash"] == pack.digest[:12] and found["S4S NFE"] == "5"

    host.section.process(Job(4), "None")
    ((component, label),) = ui_of(host)["fields"]
    assert component.elem_id == "script_solver" and label in host.section.paste_field_names
    again = Job(int(found["Steps"]), sampler_name=found["Sampler"])
    host.section.process(again, found[label])
    assert torch.equal(host.generate(again), picture)


def ui_of(host):
    """The section's UI, built under the Gradio that is installed."""
    import gradio as gr

    with gr.Blocks():
        (solver,) = host.section.ui(is_img2img=False)
    return {"solver": solver, "fields": host.section.infotext_fields}


def test_the_section_lists_describes_and_refreshes(webui, folder):
    host = webui("forge", pack_of(model={"name": "<b>bold</b>", "hash": "cd"}, cfg=[5.0, 9.0]))
    from s4s_webui import section

    (solver,) = (ui_of(host)["solver"],)
    assert solver.value == "a, b.safetensors" and solver.do_not_save_to_config
    text = section.about("a, b.safetensors")
    assert "&lt;b&gt;bold&lt;/b&gt;" in text and "4, 5, 8" in text and "5 to 9" in text
    assert "this one is tiny" in text
    (folder / "broken.safetensors").write_bytes(b"no solver")
    update, text = section.refreshed("broken.safetensors")
    assert update["choices"] == ["None", "a, b.safetensors", "broken.safetensors"]
    assert "broken.safetensors" in text and "cannot be used" in text
    (folder / "broken.safetensors").unlink()
    update, text = section.refreshed("broken.safetensors")
    assert update["value"] == "None" and "choose one" in text
    assert "There is no solver file" in section.about("gone.safetensors")
    assert host.section.show(False) is host.scripts.AlwaysVisible


def test_solvers_are_looked_for_among_the_hosts_models(webui, monkeypatch):
    webui("forge")
    monkeypatch.delenv("S4S_SOLVERS")
    assert folders.solver_folders()[0] == Path("/host/models/s4s_solvers")


def test_the_axis_of_the_plot(webui, folder):
    """X/Y/Z: one axis, whose value goes before the section's."""
    import types

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
    job = Job(4)
    axis.apply(job, "a, b.safetensors", [])
    host.section.process(job, "None")
    assert host.generate(job).isfinite().all()


@pytest.mark.parametrize("kind", ["a1111", "forge", "reforge", "classic"])
def test_training_finds_the_gpu_empty_and_the_host_gets_its_model_back(webui, kind):
    host = webui(kind)
    from s4s_webui.tab import WebUIHost

    WebUIHost().before_training()
    assert host.device == "cpu"
    host.section.before_process(Job(4), "None")
    assert host.device == ("cuda" if kind == "a1111" else "cpu")  # the others load on demand


def test_the_tab_is_the_panel_or_a_sentence(webui, monkeypatch):
    import types

    host = webui("forge")
    from s4s_webui import tab

    built = types.ModuleType("trainer.panel")
    built.build = lambda hooks: f"the panel in a {hooks.host}"
    monkeypatch.setitem(sys.modules, "trainer.panel", built)
    assert host.tabs[0]() == [("the panel in a WebUI", "S4S", "s4s")]

    def fails(hooks):
        raise RuntimeError("no <gradio> here")

    built.build = fails
    page = tab.page()
    (text,) = [block.value for block in page.blocks.values() if hasattr(block, "value")]
    assert "no &lt;gradio&gt; here" in text and "s4s.py panel" in text


def test_sheets_of_pictures_under_the_pillow_of_the_hosts(monkeypatch):
    """A1111, Forge and Classic hold Pillow 9.5, whose default font takes no size."""
    from PIL import ImageFont

    from s4s_core.app.pictures import Row, sheet

    made = ImageFont.load_default()
    monkeypatch.setattr(ImageFont, "load_default", lambda: made)
    assert sheet([Row("a row", torch.zeros(2, 3, 8, 8))]).size[1] > 16


def test_the_double_is_right():
    """The reference with guidance is what the doubles' parts give at whole times."""
    x = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(1))
    sigma = TIMES.sigma(torch.tensor([500.0, 500.0], dtype=torch.float64))
    plain, prompted = (mixture(conditional=flag).denoise(x.double(), sigma) for flag in (0, 1))
    assert (reference(x, sigma) - (plain + GUIDANCE * (prompted - plain))).abs().max() < 1e-5
    assert (plain - prompted).abs().max() > 0.05
