"""Checks of sampling: ComfyUI's samplers run a solver as the core does."""

from pathlib import Path
from unittest.mock import patch

from comfyui_bench import load


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
        gap = (b.ksample(*b.applied(kind)) - b.core_sample(kind, b.solver(kind))).abs().max()
        assert gap < 1e-4, (kind, gap)


def check_a_model_may_write_into_its_arguments(b):
    import comfy.samplers

    ask = comfy.samplers.KSamplerX0Inpaint.__call__

    def spoiling(self, x, sigma, **given):
        result = ask(self, x.clone(), sigma.clone(), **given)
        x.zero_(), sigma.fill_(-1)
        return result

    for kind in ("EDM", "flow"):
        clean = b.ksample(*b.applied(kind))
        with patch.object(comfy.samplers.KSamplerX0Inpaint, "__call__", spoiling):
            assert (b.ksample(*b.applied(kind)) - clean).abs().max() == 0, kind


def check_all_ways_to_sample_agree(b):
    for kind in ("EDM", "EPS"):
        model, positive, negative, latent, *_ = b.demo(kind)
        pack = b.solver(kind)
        for denoise in (1.0, 0.6):
            stock = b.ksample(*b.applied(kind), denoise=denoise)
            given = model, pack, 7, "5", 2.0, positive, negative, latent, denoise
            (own,) = b.node["S4SKSampler"].sample(*given)
            sampler, sigmas, steps = b.node["S4SSampler"].build(pack, "5", denoise, model)
            custom = custom_sample(b, sampler, sigmas, kind=kind)
            assert steps == 5
            assert (stock - own["samples"]).abs().max() == 0
            assert (stock - custom).abs().max() < 1e-5, kind


def custom_sample(b, sampler, sigmas, noise=None, samples=None, mask=None, kind="EDM"):
    """What the stock SamplerCustom does."""
    import comfy.sample

    model, positive, negative, latent, *_ = b.demo(kind)
    samples = latent["samples"] if samples is None else samples
    noise = comfy.sample.prepare_noise(samples, 7) if noise is None else noise
    given = model, noise, 2.0, sampler, sigmas, positive, negative, samples, mask
    return comfy.sample.sample_custom(*given, seed=7)


def check_lower_denoise_stays_closer_to_the_image(b):
    picture = b.core_sample("EDM", b.solver(), seed=3, steps=10)
    gaps = []
    for denoise in (0.0, 0.3, 0.6, 1.0):
        out = b.ksample(*b.applied()[:3], {"samples": picture}, denoise=denoise)
        assert out.isfinite().all()
        gaps.append(float((out - picture).square().mean().sqrt()))
    assert gaps[0] == 0 and gaps[1] < gaps[3] and gaps[2] < gaps[3], gaps


def check_inpainting_keeps_the_unmasked_part_exactly(b):
    import torch

    picture, mask = torch.rand(2, 3, 32, 32) * 2 - 1, torch.zeros(1, 1, 32, 32)
    mask[..., 8:24, 8:24] = 1
    kept = (mask == 0).expand_as(picture)
    for kind in ("EDM", "flow"):
        for denoise in (1.0, 0.6):
            masked = {"samples": picture, "noise_mask": mask}
            out = b.ksample(*b.applied(kind)[:3], masked, denoise=denoise)
            assert torch.equal(out[kept], picture[kept]), kind
            assert (out - picture)[~kept].abs().max() > 0.1


def check_soft_masks_blend_once(b):
    """With a soft mask, Euler as a solver equals the host's Euler on the same levels."""
    import comfy.samplers
    import torch

    for kind in ("EDM", "flow"):
        pack = b.classical(b.core_model(kind), (5, 8), "euler", 1)
        mask = torch.linspace(0, 1, 32).expand(1, 1, 32, 32)
        given = {"mask": mask, "samples": torch.rand(2, 3, 32, 32) * 2 - 1, "kind": kind}
        for steps, start in ((5, 0), (8, 3)):  # 5 of 5 steps, and the last 5 of 8
            sampler, sigmas, _ = b.node["S4SSampler"].build(pack, steps, 1.0)
            ours, theirs = (
                custom_sample(b, each, sigmas[start:], **given)
                for each in (sampler, comfy.samplers.sampler_object("euler"))
            )
            assert (ours - theirs).abs().max() < 1e-3, (kind, start)


def check_a_solver_s_own_levels_can_be_split(b):
    """The two halves run just what the whole runs; the second rows lack their history."""
    import torch

    sampler, sigmas, _ = b.node["S4SSampler"].build(b.solver(), "6", 1.0)
    half = custom_sample(b, sampler, sigmas[:4])
    whole = custom_sample(b, sampler, sigmas[3:], torch.zeros_like(half), half)
    assert whole.isfinite().all() and half.std() > 2 * whole.std()


def check_samplers_that_wrap_ours(b):
    """Samplers such as Detail Daemon pass on a plain function with only the inner model."""
    import comfy.samplers
    import torch

    sampler, sigmas, _ = b.node["S4SSampler"].build(b.solver(), "5", 1.0)

    def wrapping(model, x, sigmas, **more):
        def passed(x, sigma, **extra_args):
            return model(x, sigma, **extra_args)

        passed.inner_model, passed.sigmas = model.inner_model, model.sigmas
        return sampler.sampler_function(passed, x, sigmas, **more)

    mask = torch.zeros(1, 1, 32, 32)
    mask[..., :16] = 1
    plain = custom_sample(b, sampler, sigmas, mask=mask)
    wrapped = custom_sample(b, comfy.samplers.KSAMPLER(wrapping), sigmas, mask=mask)
    assert torch.equal(plain[..., :16], wrapped[..., :16])
    assert (plain - wrapped).abs().max() < 0.1


def check_the_callback_and_interruption(b):
    import torch

    model, network = b.null_model()
    (model,) = b.node["S4SApplySolver"].apply(model, b.solver("EPS"))
    given, heard = (model, b.plain(), b.plain(), {"samples": torch.zeros(2, 4, 8, 8)}), []

    def callback(step, x0, x, total):
        heard.append((step, tuple(x0.shape), tuple(x.shape), total))

    b.ksample(*given, cfg=1.0, callback=callback)
    assert heard == [(step, (2, 4, 8, 8), (2, 4, 8, 8), 5) for step in range(5)]

    def stop(step, *_):
        if step == 1:
            raise KeyboardInterrupt

    network.calls = 0
    try:
        b.ksample(*given, cfg=1.0, callback=stop)
        raise AssertionError("not stopped")
    except KeyboardInterrupt:
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

    (model, _), asked = b.null_model(), []

    def newer(model, latent_image, downscale_ratio_spacial=None, downscale_ratio_temporal=None):
        asked.append((downscale_ratio_spacial, downscale_ratio_temporal))
        return latent_image

    latent, prepare = {"samples": torch.zeros(1, 4, 8, 8)}, b.part("nodes.sampler").prepare_latent
    with patch.object(comfy.sample, "fix_empty_latent_channels", newer):
        prepare(model, latent | {"downscale_ratio_spacial": 16})
        prepare(model, latent)
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
