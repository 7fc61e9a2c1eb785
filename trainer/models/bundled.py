"""Models that need no file from the user: the demo network and the analytic mixture."""

from pathlib import Path

from s4s_core.demo import SOLVERS, load_demo
from s4s_core.errors import ModelError
from s4s_core.mixture import GaussianMixture

from . import ModelChoice
from .contract import TrainerModel, about, choose_device, complete, no_pictures, rgb_pictures

DEMO_CFG = 4.0


def _variant(kind: str) -> str:
    """Return ve, vp or flow."""
    return kind.partition("-")[2] or "ve"


def open_demo(choice: ModelChoice) -> TrainerModel:
    """Open the emoji model; its conditions are classes, so it ignores prompts."""
    cfg, device = choice.cfg or DEMO_CFG, choose_device(choice.device)
    model = load_demo(_variant(choice.kind), cfg).to(device)
    digest = model.fingerprint.partition("-")[0]
    height, width = model.shape[1:]
    facts = about(choice.kind, digest, cfg, width, height, architecture="s4s-emoji")
    return complete(model, name=choice.kind, about=facts, device=device, decode=rgb_pictures)


def open_mixture(choice: ModelChoice) -> TrainerModel:
    """Open the mixture of the benchmarks: means in 8 of 64 dimensions."""
    space = _variant(choice.kind)
    model = GaussianMixture.random(64, (64,), seed=3, spread=1.0, scale=0.5, rank=8, space=space)
    return complete(
        model,
        name=choice.kind,
        about=about(choice.kind, "", 1.0),
        device=choose_device("cpu"),
        fingerprint=f"mixture-64-64-{space}",
        decode=no_pictures,
    )


def solver_path(kind: str) -> Path:
    """Return the path of the solver file that ships with a model; raise ModelError if none does."""
    if not kind.startswith("demo") or _variant(kind) not in SOLVERS:
        raise ModelError(f"No solver ships with '{kind}'. Choose a file with --solver.")
    return SOLVERS[_variant(kind)]
