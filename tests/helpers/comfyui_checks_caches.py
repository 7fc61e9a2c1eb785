"""Checks of models that reuse results of earlier calls: EasyCache, LazyCache, TeaCache and kin."""

from types import SimpleNamespace
from unittest.mock import patch

from comfyui_bench import Skipped, refusal

SHAPE = (2, 4, 8, 8)


def wave(x, time):
    return (3 * x + time.view(-1, 1, 1, 1) / 300).sin()


def with_cache(model, name, threshold=0.2):
    """A MODEL after ComfyUI's node of this name; the double only marks it as that node does."""
    try:
        from comfy_extras import nodes_easycache
    except ImportError:
        model = model.clone()
        model.model_options["transformer_options"]["easycache"] = SimpleNamespace(name=name)
        return model
    node = getattr(nodes_easycache, f"{name}Node")
    return node.execute(model, threshold, 0.0, 1.0, False).args[0]


def train_and_compare(b, model):
    """What Train Solver and Compare Solvers do with a model, as functions."""
    import torch

    latent = {"samples": torch.zeros(SHAPE)}
    ends = "karras", "euler", "karras", 8
    train, compare = b.node["S4STrainSolver"].train, b.node["S4SCompare"].compare
    given = model, b.plain(), b.plain(), latent, 2.0, "3", "quick", "euler", "karras", 8, 1
    compared = model, b.solver("EPS"), b.plain(), b.plain(), latent, 0, 4, 2.0, "euler", *ends
    return lambda: train(*given), lambda: compare(*compared)


def check_training_and_comparing_refuse_caching_nodes(b):
    for name in ("EasyCache", "LazyCache"):
        for action in train_and_compare(b, with_cache(b.null_model()[0], name)):
            refusal(action, f"bypass the node {name}")


def check_training_and_comparing_refuse_caches_without_a_name(b):
    """A model that reuses its last result while the input changes little, as TeaCache does."""
    last = []

    def caching(x, time):
        if not last or last[0].shape != x.shape or (x - last[0]).norm() > 0.1 * x.norm():
            last[:] = x, wave(x, time)
        return last[1]

    for action in train_and_compare(b, b.null_model(answer=caching)[0]):
        refusal(action, "depend on earlier calls", "TeaCache")


def check_a_solver_samples_with_caching_nodes(b):
    """Even where it needs no negative prompt at first: EasyCache asks for its earlier result."""
    import torch

    try:
        import comfy.patcher_extension as extension
        from comfy_extras import nodes_easycache  # noqa: F401
    except ImportError:
        raise Skipped("the double has no caching nodes") from None

    model, network = b.null_model()

    def forward(self, x, time, context=None, control=None, transformer_options=None, **more):
        """Call the wrappers of a network, as ComfyUI's own networks do."""
        kind = extension.WrappersMP.DIFFUSION_MODEL
        wrappers = extension.get_all_wrappers(kind, transformer_options)
        run = extension.WrapperExecutor.new_class_executor(evaluate, self, wrappers)
        return run.execute(x, time, context, control, transformer_options, **more)

    def evaluate(x, time, *_, **__):
        evaluated.append(len(x))
        return wave(x, time)

    pack, latent, evaluated = b.solver("EPS"), {"samples": torch.zeros(SHAPE)}, []
    with patch.object(network, "forward", forward):
        for multipliers in (None, (0.0, 0.0, 0.0, 1.0, 1.0)):
            table = pack[5].replace(guidance=multipliers)
            solver = type(pack)({5: table}, pack.metadata)
            for name in ("EasyCache", "LazyCache"):
                evaluated.clear()
                cached = with_cache(model, name, threshold=3.0)
                (applied,) = b.node["S4SApplySolver"].apply(cached, solver)
                out = b.ksample(applied, b.plain(), b.plain(), latent)
                assert out.shape == SHAPE and bool(out.isfinite().all())
                assert 0 < len(evaluated) < 5, (name, evaluated)  # of five calls some were reused
