"""Checks of the memory that ComfyUI is asked for, against what then runs."""

from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

SIZE = (4, 8, 8)


@contextmanager
def memory(free):
    """A host with so many bytes free; yields the list of what it is asked for."""
    import comfy.model_management as management

    asked, load = [], management.load_models_gpu

    def noted(models, *args, memory_required=0, **more):
        asked.append(memory_required)
        return load(models, *args, memory_required=memory_required, **more)

    given = {"get_free_memory": lambda *args, **more: free, "load_models_gpu": noted}
    with patch.multiple(management, **given):
        yield asked


def enough_for(base, batch):
    """The bytes with which a batch just fits."""
    import comfy.model_management as management

    return management.extra_reserved_memory() + 1.5 * base.memory_required([2 * batch, *SIZE]) + 1


def counting_model(b):
    """(MODEL, the list of how many rows its calls have)."""
    rows = []

    def answer(x, time):
        rows.append(len(x))
        return (3 * x + time.view(-1, 1, 1, 1) / 300).sin()

    return b.null_model(answer=answer)[0], rows


def check_training_asks_for_the_memory_of_its_batches(b):
    """It trains in the batch that fits into what is free, and the solver does not depend on it."""
    import torch

    model, rows = counting_model(b)
    given = model, b.plain(), b.plain(), {"samples": torch.zeros(1, *SIZE)}, 2.0
    train = partial(b.node["S4STrainSolver"].train, *given, "3", "quick", "euler", "karras", 8, 1)
    learned = []
    for batch, free in (
        (32, 8 << 30),
        (8, enough_for(model.model, 8)),
        (4, enough_for(model.model, 8) - 2),
        (1, 0),
    ):
        rows.clear()
        with memory(free) as asked, patch.dict(b.part("nodes.training").EFFORTS, quick=1500):
            learned.append(train()["result"][0][3])
        assert batch <= max(rows) <= 2 * batch, (batch, max(rows))  # with the negative
        needed = model.model.memory_required([max(rows), *SIZE])
        assert asked[-1] == model.model.memory_required([2 * batch, *SIZE]) >= needed
        assert asked[0] == model.model.memory_required([2, *SIZE])  # weights stay as for one
    for table in learned[1:]:
        assert abs(table.sigmas - learned[0].sigmas).max() < 1e-3


def check_a_comparison_asks_for_the_memory_of_its_batches(b):
    """All latents at once, as KSampler would, or fewer if they do not fit."""
    import torch

    model, rows = counting_model(b)
    pack = b.solver("EPS")
    given = model, pack, b.plain(), b.plain(), {"samples": torch.zeros(6, *SIZE)}, 0
    rest = 4, 2.0, "euler", "karras", "euler", "karras", 8
    texts = set()
    for batch, free in ((6, 8 << 30), (3, enough_for(model.model, 3)), (1, 0)):
        rows.clear()
        with memory(free) as asked:
            text = b.node["S4SCompare"].compare(*given, *rest)["result"][1]
        texts.add("\n".join(line[:44].strip() for line in text.splitlines()[1:]))
        assert batch <= max(rows) <= 2 * batch, (batch, max(rows))
        assert asked[-1] == model.model.memory_required([2 * batch, *SIZE])
    assert len(texts) == 1, texts  # calls and errors; seconds vary
