"""Checks of solvers that set the guidance of each call."""

from contextlib import suppress
from functools import partial
from unittest.mock import patch

from comfyui_bench import Skipped, refusal

VARIED = (1.2, 0.7, 1.0, 0.4, 0.0)
NOISY = ("ancestral", "sde", "ddpm", "lcm", "seeds", "sa_solver")
"""In the names of stock samplers that add noise."""


def guided(b, multipliers, kind="EDM"):
    """The solver's table of five calls with these multipliers, or with none."""
    pack = b.solver(kind)
    return type(pack)({5: pack[5].replace(guidance=multipliers)}, pack.metadata)


def guide(b, guider, pack, shape=(3, 32, 32), **more):
    """What SamplerCustomAdvanced does with a guider."""
    import torch

    sampler, sigmas, _ = b.node["S4SSampler"].build(pack, 5, 1.0)
    noise = torch.randn(2, *shape, generator=torch.manual_seed(7))
    given = torch.zeros_like(noise), sampler, sigmas
    return guider.sample(noise, *given, disable_pbar=True, seed=7, **more)


def plain_guider(model, positive, negative, cfg):
    import comfy.samplers

    guider = comfy.samplers.CFGGuider(model)
    guider.set_conds(positive, negative)
    guider.set_cfg(cfg)
    return guider


def check_multipliers_of_one_change_nothing(b):
    import torch

    for kind in ("EDM", "EPS", "flow"):
        for denoise in (1.0, 0.6):
            ones, none = (
                b.ksample(*b.applied(kind, guided(b, each, kind)), cfg=3.7, denoise=denoise)
                for each in ([1.0] * 5, None)
            )
            assert torch.equal(ones, none), kind


def check_each_call_has_its_own_scale(b):
    for kind in ("EDM", "EPS", "flow"):
        pack = guided(b, VARIED, kind)
        result = b.ksample(*b.applied(kind, pack), cfg=4.0)
        assert (result - b.core_sample(kind, pack, cfg=4.0)).abs().max() < 1e-4, kind
        assert (result - b.ksample(*b.applied(kind), cfg=4.0)).abs().max() > 0.01, kind


def check_a_multiplier_of_zero_saves_the_unconditional_half(b):
    import torch

    model, network = b.null_model()
    (model,) = b.node["S4SApplySolver"].apply(model, guided(b, [1, 0.5, 0, 1, 0], "EPS"))
    latent = {"samples": torch.zeros(2, 4, 8, 8)}
    for cfg, calls in ((3.0, 2 * (3 * 2 + 2)), (1.0, 2 * 5)):
        network.calls = 0
        b.ksample(model, b.plain(), b.plain(), latent, cfg=cfg)
        assert network.calls == calls, (cfg, network.calls)


def check_the_scale_is_put_back_whatever_happens(b):
    """After a run, an error or a cancelled call inside the model, and an interrupted callback."""
    import comfy.model_management

    seen, faults = [], []

    def answer(x, time):
        seen.append(guider.cfg)
        if faults and len(seen) > 1:
            raise faults[0]
        return x / 3

    def callback(*_):
        if not faults and interrupted:
            raise KeyboardInterrupt

    guider = plain_guider(b.null_model(answer=answer)[0], b.plain(), b.plain(), 4.0)
    cancelled = comfy.model_management.InterruptProcessingException
    for fault, interrupted in (
        (None, False),
        (ValueError, False),
        (cancelled, False),
        (None, True),
    ):
        seen.clear()
        faults[:] = [] if fault is None else [fault()]
        with suppress(ValueError, cancelled, KeyboardInterrupt):
            guide(b, guider, guided(b, [0.5] * 5, "EPS"), (4, 8, 8), callback=callback)
            assert fault is None and not interrupted, "not stopped"
        assert seen and set(seen) == {2.5} and guider.cfg == 4.0, (fault, seen)


def check_a_guider_without_a_scale_says_so_once(b):
    """BasicGuider has one prompt; a wrapper that only passes attributes on holds no scale."""
    import comfy.samplers
    import torch

    class Basic(comfy.samplers.CFGGuider):
        def set_conds(self, positive):
            self.inner_set_conds({"positive": positive})

    class Wrapper:
        def __init__(self, guider):
            self.guider = guider

        def __getattr__(self, name):
            return getattr(self.guider, name)

    model, positive, negative, *_ = b.demo()
    guider, sent = Basic(model), []
    guider.set_conds(positive)
    with patch.object(b.part("nodes.notices"), "send", lambda event, data: sent.append(data)):
        without = guide(b, guider, guided(b, None))
        sent.clear()
        assert torch.equal(guide(b, guider, guided(b, VARIED)), without)
        assert len([data for data in sent if "sets the guidance" in data["text"]]) == 1, sent
        sent.clear()
        guide(b, plain_guider(model, positive, negative, 1.0), guided(b, VARIED))
        assert not [data for data in sent if "sets the guidance" in data["text"]], sent
    other, scales = plain_guider(*b.demo()[:3], 4.0), b.part("s4s_core.app.comfyui").guidance_scales
    other.conds = other.original_conds
    assert scales(other) == {"cfg": 4.0} and scales(Wrapper(other)) == {}


def check_other_guiders_scale_alike(b):
    """Half the guidance of 5 is that of 3; DualCFG has two scales, PerpNeg one of its own."""
    import torch

    try:
        from comfy_extras.nodes_custom_sampler import Guider_DualCFG
        from comfy_extras.nodes_perpneg import Guider_PerpNeg
    except ImportError:
        raise Skipped("the double has no such guiders") from None
    model, *_, clip = b.demo()
    prompts = [clip.encode(name) for name in ("animal face", "heart", "flag")]

    def made(kind, scales, *more):
        guider = kind(model)
        guider.set_conds(*prompts)
        guider.set_cfg(*scales, *more)
        return guider

    for kind, more in ((Guider_DualCFG, (False,)), (Guider_DualCFG, (True,)), (Guider_PerpNeg, ())):
        whole, half = ((5.0, 3.0), (3.0, 2.0)) if more else ((5.0, 1.0), (3.0, 1.0))
        guider, sent = made(kind, whole, *more), []
        with patch.object(b.part("nodes.notices"), "warn", sent.append):
            result = guide(b, guider, guided(b, [0.5] * 5))
        assert torch.equal(result, guide(b, made(kind, half, *more), guided(b, None))), kind
        assert not [text for text in sent if "guidance" in text or "CFG 1." in text], sent
        assert (guider.cfg1, guider.cfg2) == whole if more else guider.cfg == 5.0


def check_patches_see_the_scale_that_was_used(b):
    """RescaleCFG, APG, CFG-Zero and others compute with the scale that they are told."""
    import torch

    try:
        from comfy_extras.nodes_apg import APG
        from comfy_extras.nodes_cfg import CFGZeroStar
        from comfy_extras.nodes_model_advanced import RescaleCFG
    except ImportError:
        raise Skipped("the double has no patches of guidance") from None
    model, *rest = b.demo()[:4]
    apply, seen = b.node["S4SApplySolver"].apply, []
    patched = (
        RescaleCFG().patch(model, 0.7)[0],
        APG.execute(model, 0.5, 5.0, 0.3)[0],
        CFGZeroStar.execute(model)[0],
    )
    for each in patched:
        half = b.ksample(*apply(each, guided(b, [0.5] * 5)), *rest, cfg=5.0)
        assert torch.equal(half, b.ksample(*apply(each, guided(b, None)), *rest, cfg=3.0))
    watched = model.clone()
    watched.set_model_sampler_post_cfg_function(
        lambda args: seen.append(args["cond_scale"]) or args["denoised"]
    )
    b.ksample(*apply(watched, guided(b, VARIED)), *rest, cfg=5.0)
    assert all(abs(got - (1 + 4 * m)) < 1e-6 for got, m in zip(seen, VARIED, strict=True)), seen


def check_rows_with_different_multipliers_equal_separate_calls(b):
    import torch

    session = b.part("nodes.session")
    model, _, negative, latent, _, clip = b.demo()
    names = ["animal face", "heart", "flag"]
    core, label = b.core_model("EDM", 4.0), torch.tensor([0, 2, 1, 1, 0])
    classes = torch.tensor([core.classes.index(name) for name in names])
    x, sigma = torch.randn(5, 3, 32, 32) * 3, torch.tensor([3.0, 2.0, 1.0, 3.0, 0.5])
    guidance = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.5])

    def work(ready):
        together = ready.denoise(x, sigma, label, guidance)
        rows = [torch.tensor([n]) for n in range(5)]
        alone = [ready.denoise(x[n], sigma[n], label[n], guidance[n]) for n in rows]
        assert (together - torch.cat(alone)).abs().max() < 1e-4
        return together, ready.takes_guidance, ready.guider.cfg

    prompts = [clip.encode(name) for name in names]
    run = partial(session.run_in_session, model, prompts, negative)
    together, takes, cfg = run(4.0, latent, 0, work)
    assert takes and cfg == 4.0
    assert (together - core.denoise(x, sigma, classes[label], guidance)).abs().max() < 1e-4
    assert not run(1.0, latent, 0, work)[1]


def check_training_learns_guidance(b):
    """At CFG 4, with a teacher that is chosen; the result carries multipliers and scores."""
    training, core_fit = b.part("nodes.training"), b.part("s4s_core.training.fit").fit
    small = {"samples": 6, "validation": 4, "held_out": 6, "starts": 1}
    model, positive, negative, latent, *_ = b.demo(batch=1)
    given = model, positive, negative, latent, 4.0, "3", "quick", "auto", "auto", 6, 1
    sent = []
    with (
        patch.object(training, "fit", lambda *args, **more: core_fit(*args, **more, **small)),
        patch.dict(training.EFFORTS, quick=1200),
        patch.object(b.part("nodes.notices"), "send", lambda event, data: sent.append(data)),
    ):
        pack, preview, report = b.node["S4STrainSolver"].train(*given, node="5")["result"]
    assert pack.sets_guidance and abs(pack[3].guidance - 1).max() > 0.01, pack[3].guidance
    assert pack.metadata["teacher"]["nfe"] == 6 and "edm" in pack.metadata["teacher"]["name"]
    messages = [data["message"] for data in sent]
    assert messages[0] == "Measuring the model" and sent[-1]["status"] == "done"
    assert messages[2].startswith("Choosing the teacher: 0 of"), messages[:3]
    assert any(data["preview"] for data in sent) and preview.shape[-1] == 3
    first = report.splitlines()[0]
    assert all(word in first for word in ("3 steps: RMSE", "median", "look")), report
    assert first.count("(") == 3, report
    result = b.ksample(*b.applied(pack=pack), cfg=4.0, steps=3)
    assert (result - b.core_sample("EDM", pack, steps=3, cfg=4.0)).abs().max() < 1e-4


def check_a_teacher_may_write_into_its_levels(b):
    import comfy.samplers as host
    import torch

    session, latent = b.part("nodes.session"), {"samples": torch.zeros(1, 4, 4, 4)}
    model = b.null_model(answer=lambda x, time: (3 * x).sin())[0]

    def writing(model, x, sigmas, **more):
        result = host.sampler_object("euler").sampler_function(model, x, sigmas.clone(), **more)
        sigmas.mul_(0.5)
        return result

    def work(ready):
        teacher = session.host_teacher(ready, host.KSAMPLER(writing), "karras", 4)
        teacher.require_deterministic()

    session.run_in_session(model, [b.plain()], b.plain(), 1.0, latent, 0, work)


def check_a_teacher_that_adds_noise_is_refused(b):
    import comfy.samplers as host
    import torch

    session, latent = b.part("nodes.session"), {"samples": torch.zeros(1, 4, 4, 4)}
    model = b.null_model(answer=lambda x, time: (3 * x).sin())[0]

    def drawing(model, x, sigmas, **more):
        """Adds noise from torch's own generator, whatever the seed."""
        return host.sampler_object("euler").sampler_function(model, x, sigmas, **more) + (
            0.01 * torch.randn_like(x)
        )

    def require(sampler):
        def work(ready):
            return session.host_teacher(ready, sampler, "karras", 4).require_deterministic()

        session.run_in_session(model, [b.plain()], b.plain(), 1.0, latent, 0, work)

    for name in b.part("nodes.inputs").stock_samplers():
        if any(word in name for word in NOISY):
            refusal(partial(require, name), name, "adds no noise", "auto")
        else:
            require(name)
    refusal(partial(require, host.KSAMPLER(drawing)), "KSAMPLER")
    home = b.part("s4s_core.app.folders").data_home() / "comfyui"
    before, train = list(home.glob("*")), b.node["S4STrainSolver"].train
    options = 2.0, "3", "quick", "euler_ancestral", "karras", 4, 0
    refusal(partial(train, model, b.plain(), b.plain(), latent, *options), "euler_ancestral")
    assert list(home.glob("*")) == before and b.part("nodes.training").running() is None
