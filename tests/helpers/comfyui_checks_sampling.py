"""Checks of sampling: ComfyUI's samplers run a solver as the core does."""

from pathlib import Path

from comfyui_bench import load, refusal


def check_names_are_in_the_stock_lists_once(b):
    import comfy.k_diffusion.sampling
    import comfy.samplers as host

    lists = host.KSampler.SAMPLERS, host.KSampler.SCHEDULERS
    assert lists[0] is host.SAMPLER_NAMES and lists[1] is host.SCHEDULER_NAMES
    for names in lists:
        assert names.count("s4s") == 1 and names[-1] == "s4s"
    b.part("nodes.sampler").register()
    load(str(Path(b.module.__file__).parent))
    for names in lists:
        assert names.count("s4s") == 1
    assert callable(comfy.k_diffusion.sampling.sample_s4s)
    b.part("nodes.sampler").register()  # the names run this copy of the pack again


def check_stock_ksampler_gives_what_the_core_gives(b):
    for kind in ("EDM", "EPS", "flow"):
        model, positive, negative, latent, *_ = b.demo(kind)
        pack = b.solver(kind)
        (model,) = b.node["S4SApplySolver"].apply(model, pack)
        got = b.ksample(model, positive, negative, latent)
        gap = (got - b.core_sample(kind, pack)).abs().max()
        assert gap < 1e-4, (kind, gap)


def check_all_ways_to_sample_agree(b):
    import comfy.sample

    for kind in ("EDM", "EPS"):
        model, positive, negative, latent, *_ = b.demo(kind)
        pack = b.solver(kind)
        for denoise in (1.0, 0.6):
            (applied,) = b.node["S4SApplySolver"].apply(model, pack)
            stock = b.ksample(applied, positive, negative, latent, denoise=denoise)
            (own,) = b.node["S4SKSampler"].sample(
                model, pack, 7, "5", 2.0, positive, negative, latent, denoise
            )
            sampler, sigmas, steps = b.node["S4SSampler"].build(pack, "5", denoise)
            noise = comfy.sample.prepare_noise(latent["samples"], 7)
            custom = comfy.sample.sample_custom(
                model, noise, 2.0, sampler, sigmas, positive, negative, latent["samples"], seed=7
            )
            assert steps == 5
            assert (stock - own["samples"]).abs().max() == 0
            assert (stock - custom).abs().max() < 1e-5, kind


def check_lower_denoise_stays_closer_to_the_image(b):
    import torch

    model, positive, negative, latent, *_ = b.demo()
    (model,) = b.node["S4SApplySolver"].apply(model, b.solver())
    picture = b.core_sample("EDM", b.solver(), seed=3, steps=10)
    gaps = []
    for denoise in (0.0, 0.3, 0.6, 1.0):
        out = b.ksample(model, positive, negative, {"samples": picture}, denoise=denoise)
        assert bool(torch.isfinite(out).all())
        gaps.append(float((out - picture).square().mean().sqrt()))
    assert gaps[0] == 0 and gaps[1] < gaps[3] and gaps[2] < gaps[3], gaps


def check_inpainting_keeps_the_unmasked_part_exactly(b):
    import torch

    for kind in ("EDM", "flow"):
        model, positive, negative, latent, *_ = b.demo(kind)
        (model,) = b.node["S4SApplySolver"].apply(model, b.solver(kind))
        picture = torch.rand(2, 3, 32, 32) * 2 - 1
        mask = torch.zeros(1, 1, 32, 32)
        mask[..., 8:24, 8:24] = 1
        masked = {"samples": picture, "noise_mask": mask}
        for denoise in (1.0, 0.6):
            out = b.ksample(model, positive, negative, masked, denoise=denoise)
            kept = (mask == 0).expand_as(out)
            assert torch.equal(out[kept], picture[kept]), kind
            assert (out - picture)[~kept].abs().max() > 0.1


def euler_pack(b, kind, nfes):
    """Euler as a solver, in the noise range of a kind of the demo model."""
    core, table = b.part("s4s_core"), b.part("s4s_core.table")
    model = b.core_model(kind)
    nodes = [core.schedule("logsnr", nfe, model) for nfe in nfes]
    return table.SolverPack.of(*(core.classical_table("euler", n, 1, model.space) for n in nodes))


def check_soft_masks_blend_once(b):
    """With a soft mask, Euler as a solver equals the host's Euler."""
    import torch

    for kind in ("EDM", "flow"):
        model, positive, negative, *_ = b.demo(kind)
        (model,) = b.node["S4SApplySolver"].apply(model, euler_pack(b, kind, (5, 8)))
        mask = torch.linspace(0, 1, 32).expand(1, 1, 32, 32)
        masked = {"samples": torch.rand(2, 3, 32, 32) * 2 - 1, "noise_mask": mask}
        for denoise in (1.0, 0.6):  # 5 of 5 steps, and the last 5 of 8
            runs = [
                b.ksample(model, positive, negative, masked, sampler_name=name, denoise=denoise)
                for name in ("s4s", "euler")
            ]
            gap = (runs[0] - runs[1]).abs().max()
            assert gap < 1e-3, (kind, denoise, gap)


def check_only_the_solvers_own_schedule_can_be_split(b):
    """Two halves of a solver's own sigmas run; half of any other schedule is refused."""
    import comfy.sample
    import comfy.samplers
    import torch

    model, positive, negative, latent, *_ = b.demo()
    sampler, sigmas, _ = b.node["S4SSampler"].build(b.solver(), "6", 1.0)
    noise = comfy.sample.prepare_noise(latent["samples"], 7)

    def run(levels, noise, samples):
        given = model, noise, 2.0, sampler, levels, positive, negative, samples
        return comfy.sample.sample_custom(*given, seed=7)

    half = run(sigmas[:4], noise, latent["samples"])
    whole = run(sigmas[3:], torch.zeros_like(noise), half)
    assert bool(torch.isfinite(whole).all()) and half.std() > 2 * whole.std()
    sampling = model.get_model_object("model_sampling")
    other = comfy.samplers.calculate_sigmas(sampling, "karras", 6)
    refusal(lambda: run(other[:4], noise, latent["samples"]), "cannot stop", "to the end")


def check_samplers_that_wrap_ours(b):
    """Samplers such as Detail Daemon pass on a plain function with only the inner model."""
    import comfy.sample
    import comfy.samplers
    import torch

    model, positive, negative, latent, *_ = b.demo()
    sampler, sigmas, _ = b.node["S4SSampler"].build(b.solver(), "5", 1.0)

    def wrapping(model, x, sigmas, **more):
        def passed(x, sigma, **extra_args):
            return model(x, sigma, **extra_args)

        passed.inner_model, passed.sigmas = model.inner_model, model.sigmas
        return sampler.sampler_function(passed, x, sigmas, **more)

    noise, mask = comfy.sample.prepare_noise(latent["samples"], 7), torch.zeros(1, 1, 32, 32)
    mask[..., :16] = 1
    plain, wrapped = (
        comfy.sample.sample_custom(
            model, noise, 2.0, one, sigmas, positive, negative, latent["samples"], mask, seed=7
        )
        for one in (sampler, comfy.samplers.KSAMPLER(wrapping))
    )
    assert torch.equal(plain[..., :16], wrapped[..., :16])
    assert (plain - wrapped).abs().max() < 0.1


def check_the_callback_and_interruption(b):
    model, network = b.null_model()
    pack = b.solver("EPS")
    (model,) = b.node["S4SApplySolver"].apply(model, pack)
    import torch

    latent, plain, heard = {"samples": torch.zeros(2, 4, 8, 8)}, b.plain(), []

    def callback(step, x0, x, total):
        heard.append((step, tuple(x0.shape), tuple(x.shape), total))

    b.ksample(model, plain, plain, latent, cfg=1.0, callback=callback)
    assert [entry[0] for entry in heard] == [0, 1, 2, 3, 4]
    assert {entry[1:] for entry in heard} == {((2, 4, 8, 8), (2, 4, 8, 8), 5)}

    class Stop(Exception):
        pass

    def stop(step, *_):
        if step == 1:
            raise Stop

    network.calls = 0
    try:
        b.ksample(model, plain, plain, latent, cfg=1.0, callback=stop)
        raise AssertionError("not stopped")
    except Stop:
        assert network.calls == 2 * 2  # two calls of a batch of two, and no third


def check_video_and_16_channel_latents(b):
    import torch

    for kind, shape in (("EPS", (16, 8, 8)), ("flow", (16, 3, 8, 8))):
        model, _ = b.null_model(16, len(shape) - 1, kind.upper())
        pack = b.solver(kind)
        (model,) = b.node["S4SApplySolver"].apply(model, pack)
        latent = {"samples": torch.randn(2, *shape)}
        for denoise in (1.0, 0.5):
            out = b.ksample(model, b.plain(), b.plain(), latent, denoise=denoise)
            assert out.shape == (2, *shape) and bool(torch.isfinite(out).all())


def check_the_scale_of_an_empty_latent_is_passed_on(b):
    """Newer hosts fit an empty latent to the model by the ratio stored in the latent."""
    import comfy.sample
    import torch

    model, _ = b.null_model()
    before, asked = comfy.sample.fix_empty_latent_channels, []

    def newer(model, latent_image, downscale_ratio_spacial=None, downscale_ratio_temporal=None):
        asked.append((downscale_ratio_spacial, downscale_ratio_temporal))
        return latent_image

    latent, prepare = {"samples": torch.zeros(1, 4, 8, 8)}, b.part("nodes.sampler").prepare_latent
    try:
        comfy.sample.fix_empty_latent_channels = newer
        prepare(model, latent | {"downscale_ratio_spacial": 16})
        prepare(model, latent)
    finally:
        comfy.sample.fix_empty_latent_channels = before
    assert asked == [(16, None), (None, None)]
    assert prepare(model, latent | {"downscale_ratio_spacial": 16}).shape == (1, 4, 8, 8)


def check_a_clone_keeps_the_solver_and_exact_times(b):
    import torch

    model, *_ = b.demo("EPS")
    before = model.get_model_object("model_sampling")
    (applied,) = b.node["S4SApplySolver"].apply(model, b.solver("EPS"))
    after = applied.get_model_object("model_sampling")
    times = torch.tensor([0.0, 0.25, 812.4, 998.7, 999.0])
    assert torch.allclose(after.timestep(after.sigma(times)), times, atol=2e-2)
    assert float(after.timestep(torch.tensor([1e9]))) == 999.0
    assert model.get_model_object("model_sampling") is before
    assert float(before.timestep(before.sigma(times))[2]) == 812
    assert applied.clone().clone().get_model_object("model_sampling") is after
    assert isinstance(after, type(before)) and torch.equal(after.sigmas, before.sigmas)
    flow = b.demo("flow")[0].get_model_object("model_sampling")
    assert type(b.part("s4s_core.app.comfyui").exact_sampling(flow)) is type(flow)
