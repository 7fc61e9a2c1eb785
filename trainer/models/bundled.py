"""Models that need no file of the user's: the demo network and the analytic mixture."""

from s4s_core.demo import SOLVERS, load_demo
from s4s_core.errors import ModelError
from s4s_core.mixture import GaussianMixture

from .contract import about, choose_device, complete, no_pictures, rgb_pictures

DEMO_CFG = 2.0


def _variant(kind):
    """ve, vp or flow."""
    return kind.partition("-")[2] or "ve"


def open_demo(choice):
    """The emoji model; its conditions are classes, so prompts mean nothing to it."""
    cfg, device = choice.cfg or DEMO_CFG, choose_device(choice.device)
    model = load_demo(_variant(choice.kind), cfg).to(device)
    digest = model.fingerprint.partition("-")[0]
    height, width = model.shape[1:]
    facts = about(choice.kind, digest, cfg, width, height, architecture="s4s-emoji")
    return complete(model, name=choice.kind, about=facts, device=device, decode=rgb_pictures)


def open_mixture(choice):
    """The mixture of the benchmarks: means in 8 of 64 dimensions."""
    space = _variant(choice.kind)
    shape = dict(seed=3, spread=1.0, scale=0.5, rank=8, space=space)
    model = GaussianMixture.random(64, (64,), **shape)
    facts = about(choice.kind, "", 1.0)
    return complete(
        model,
        name=choice.kind,
        about=facts,
        device=choose_device("cpu"),
        fingerprint=f"mixture-64-64-{space}",
        decode=no_pictures,
    )


def solver_path(kind):
    """Path of the solver file that ships with a model; ModelError where none does."""
    if not kind.startswith("demo") or _variant(kind) not in SOLVERS:
        raise ModelError(f"No solver is bundled for '{kind}': name a file with --solver.")
    return SOLVERS[_variant(kind)]
