"""Models by name, for the command line and the benchmarks."""

from s4s_core.errors import ModelError

MODELS = {
    "mixture": "an analytic Gaussian mixture, 64 components in 64 dimensions",
    "mixture-flow": "the same as a flow model",
    "demo": "the bundled emoji model",
    "demo-vp": "the same with the discrete times of Stable Diffusion",
    "demo-flow": "the same as a flow model",
}


def load_model(name, cfg=1.0):
    """The model of that name; `cfg` is the guidance scale where the model has one."""
    if name not in MODELS:
        raise ModelError(f"Unknown model '{name}': choose one of {', '.join(MODELS)}.")
    base, _, kind = name.partition("-")
    if base == "mixture":
        from s4s_core.mixture import GaussianMixture

        shape = dict(seed=3, spread=1.0, scale=0.5, rank=8, space=kind or "ve")
        return GaussianMixture.random(64, (64,), **shape)
    from s4s_core.demo import load_demo

    return load_demo(kind or "ve", cfg)


def bundled_solver(name):
    """Path of the solver file that ships with a model."""
    from s4s_core.demo import SOLVERS

    kind = name.partition("-")[2] or "ve"
    if not name.startswith("demo") or kind not in SOLVERS:
        raise ModelError(f"No solver is bundled for '{name}': name a file with --solver.")
    return SOLVERS[kind]
