"""Checks of runs over a part of the way: they begin, count and report as stock samplers do."""

from contextlib import contextmanager
from unittest.mock import patch

from comfyui_bench import Skipped, refusal
from comfyui_checks_sampling import custom_sample

KINDS = ("EDM", "EPS", "flow")
ASKED = [(steps, denoise) for steps in (6, 20) for denoise in (0.2, 0.4, 0.7)]


@contextmanager
def levels(calls):
    """Add the noise level of every model call to a list."""
    import comfy.samplers

    ask = comfy.samplers.KSamplerX0Inpaint.__call__

    def noting(self, x, sigma, **given):
        calls.append(float(sigma[0]))
        return ask(self, x, sigma, **given)

    with patch.object(comfy.samplers.KSamplerX0Inpaint, "__call__", noting):
        yield


def story(b, kind, pack=None, **more):
    """What a KSampler shows while it runs: its first level, its calls, its progress."""
    calls, progress = [], []
    with levels(calls):
        b.ksample(
            *b.applied(kind, pack),
            callback=lambda step, x0, x, total: progress.append((step, total)),
            **more,
        )
    return calls[0], len(calls), progress


def check_a_strength_begins_counts_and_ends_as_stock(b):
    """In the stock KSampler; 6 steps at 0.7 ask the scheduler for 8, which the solver has."""
    euler = {"sampler_name": "euler", "scheduler": "simple"}
    for kind in KINDS:
        for steps, denoise in ASKED:
            ours, theirs = (
                story(b, kind, steps=steps, denoise=denoise, **more) for more in ({}, euler)
            )
            assert abs(ours[0] / theirs[0] - 1) < 1e-4, (kind, steps, denoise, ours, theirs)
            assert ours[1:] == theirs[1:], (kind, steps, denoise)
            assert ours[1] == steps and ours[2][-1] == (steps - 1, steps)


def check_start_and_end_steps_are_those_of_simple(b):
    """KSampler (Advanced): the middle of a run, its end, and an end that is forced to 0."""
    euler = {"sampler_name": "euler", "scheduler": "simple"}
    for kind in KINDS:
        for steps in (8, 20):
            for start, last, force in (
                (2, 10**4, False),
                (0, 4, False),
                (3, 6, False),
                (2, 5, True),
            ):
                piece = {"start_step": start, "last_step": last, "force_full_denoise": force}
                ours, theirs = (
                    story(b, kind, steps=steps, **piece, **more) for more in ({}, euler)
                )
                assert abs(ours[0] / theirs[0] - 1) < 1e-4, (kind, piece)
                assert ours[1:] == theirs[1:], (kind, piece)


def check_two_samplers_in_a_row_end_near_the_whole_run(b):
    """The first hands on what noise is left, the second goes on from there."""
    import torch

    for kind in KINDS:
        given = b.applied(kind)
        whole = b.ksample(*given, steps=6)
        half = b.ksample(*given, steps=6, last_step=3)
        model, positive, negative, _ = given
        going_on = model, positive, negative, {"samples": half}
        rest = b.ksample(*going_on, steps=6, start_step=3, add_noise=False)
        assert half.std() > whole.std()
        gap, size = (rest - whole).square().mean().sqrt(), whole.square().mean().sqrt()
        assert gap < 0.35 * size, (kind, float(gap), float(size))
        assert torch.isfinite(rest).all()


def check_every_node_begins_alike(b):
    """KSampler (S4S), Sampler (S4S) and the stock scheduler node's sigmas, split or not."""
    import comfy.samplers

    for kind in KINDS:
        model, positive, negative, latent, *_ = b.demo(kind)
        pack = b.solver(kind)
        want = story(b, kind, steps=6, denoise=0.4)[:2]
        calls = []
        with levels(calls):
            b.node["S4SKSampler"].sample(model, pack, 7, "6", 2.0, positive, negative, latent, 0.4)
        assert (calls[0], len(calls)) == want
        sampler, sigmas, _ = b.node["S4SSampler"].build(pack, "6", 0.4, model)
        sampling = b.applied(kind)[0].get_model_object("model_sampling")
        split = comfy.samplers.calculate_sigmas(sampling, "s4s", 15)[-7:]
        for given in (sigmas, split):
            calls.clear()
            with levels(calls):
                custom_sample(b, sampler, given, kind=kind)
            assert (calls[0], len(calls)) == want
    refusal(lambda: b.node["S4SSampler"].build(pack, "6", 0.4), "connect the model", "denoise to 1")


def check_trained_parts_run_at_their_strength(b):
    """A part of the pack changes what its strength and step count draw, and nothing else."""
    import torch

    parts = b.part("s4s_core.parts")
    for kind in KINDS:
        pack, model = b.solver(kind), b.core_model(kind)
        level = b.part("s4s_core.strength").level_of(model, 0.5)
        part = parts.relaid(pack[6], level, 6)
        part = part.replace(**{k: a * 1.1 for k, a in part.coefficients.items()})
        trained = type(pack)(pack.tables, pack.metadata, (part,))
        for steps, denoise, same in ((6, 0.5, False), (6, 1.0, True), (5, 0.5, True)):
            given = {"steps": steps, "denoise": denoise}
            one, other = (b.ksample(*b.applied(kind, each), **given) for each in (pack, trained))
            assert torch.allclose(one, other, atol=1e-3) == same or steps == 5, (kind, given)
        ours = b.ksample(*b.applied(kind, trained), steps=6, denoise=0.5)
        plain = b.ksample(*b.applied(kind, pack), steps=6, denoise=0.5)
        assert (ours - plain).abs().max() > 0.01, kind


def check_other_schedulers_run_as_given_with_a_notice(b):
    """Levels that are not ours are the user's."""
    import torch

    said = []
    with patch.object(b.part("nodes.notices"), "warn", said.append):
        for kind in KINDS:
            calls, given = [], b.applied(kind)
            with levels(calls):
                b.ksample(*given, steps=6, scheduler="karras")
            asked = []
            with levels(asked):
                b.ksample(*given, steps=6, scheduler="karras", sampler_name="euler")
            assert torch.allclose(torch.tensor(calls), torch.tensor(asked), rtol=1e-4), kind
            assert any("not those of the scheduler" in text for text in said), said
            said.clear()
            b.ksample(*given, steps=6, scheduler="simple")
            b.ksample(*given, steps=6, denoise=0.5)
            assert not any("not those of the scheduler" in text for text in said), said


def check_rising_sigmas_are_refused(b):
    sampler, sigmas, _ = b.node["S4SSampler"].build(b.solver(), "6", 1.0)
    refusal(lambda: custom_sample(b, sampler, sigmas.flip(0)), "unsampling is not supported")


def check_a_strength_changes_as_much_as_stock(b):
    """What Ultimate SD Upscale and detailers do: a few steps at a low strength on a picture."""
    picture = b.core_sample("EPS", b.solver("EPS"), seed=3)
    given = *b.applied("EPS")[:3], {"samples": picture}
    for steps, denoise in ((20, 0.2), (20, 0.4), (6, 0.4)):
        ours, theirs = (
            float((b.ksample(*given, steps=steps, denoise=denoise, **more) - picture).abs().mean())
            for more in ({}, {"sampler_name": "dpmpp_2m", "scheduler": "simple"})
        )
        assert 0.8 < ours / theirs < 1.2, (steps, denoise, ours, theirs)


def check_hard_and_soft_masks_below_full_strength(b):
    """The kept part is exact, and a feathered edge changes less the more it is protected."""
    import torch

    picture = torch.rand(2, 3, 32, 32) * 2 - 1
    hard, soft = torch.zeros(1, 1, 32, 32), torch.linspace(0, 1, 32).expand(1, 1, 32, 32).clone()
    hard[..., 8:24, 8:24] = 1
    for kind in KINDS:
        for steps in (5, 20):
            for mask in (hard, soft):
                given = *b.applied(kind)[:3], {"samples": picture, "noise_mask": mask}
                out = b.ksample(*given, steps=steps, denoise=0.5)
                kept = (mask == 0).expand_as(picture)
                assert torch.equal(out[kept], picture[kept]), (kind, steps)
                moved = (out - picture).abs()
                assert (
                    moved[(mask > 0.8).expand_as(picture)].mean()
                    > 2 * moved[(mask < 0.2).expand_as(picture)].mean()
                ), (kind, steps)


def check_differential_diffusion_below_full_strength(b):
    """A pixel takes part once the run is below its mask's share of the way, as with Euler."""
    import importlib

    import torch

    try:
        module = importlib.import_module("comfy_extras.nodes_differential_diffusion")
    except ImportError:
        raise Skipped("this host has no Differential Diffusion") from None
    node = module.DifferentialDiffusion
    picture = b.core_sample("EPS", b.solver("EPS"), seed=3)
    ramp = torch.linspace(0, 1, 32).expand(1, 1, 32, 32).clone()
    moved = []
    for more in ({}, {"sampler_name": "euler", "scheduler": "simple"}):
        model, *rest = b.applied("EPS")[:3]
        result = node.execute(model) if hasattr(node, "execute") else node().apply(model)
        given = result[0], *rest, {"samples": picture, "noise_mask": ramp}
        out = b.ksample(*given, steps=20, denoise=0.6, **more)
        moved.append((out - picture).abs().mean((0, 1, 2)))
    ours, theirs = moved
    assert (ours - theirs).abs().mean() < 0.35 * theirs.mean(), (ours, theirs)
