"""Checks of what Train Solver says that training will take, before and after."""

import re
from types import SimpleNamespace
from unittest.mock import patch

from comfyui_checks_memory import SIZE, counting_model


def check_training_says_what_it_will_take_and_what_it_took(b):
    """On the node and in the sidebar before the first pair, and again in the report."""
    import torch

    said = []
    host = SimpleNamespace(
        send_sync=lambda event, data: said.append((event, data)),
        send_progress_text=lambda text, node: said.append((node, text)),
    )
    model, rows = counting_model(b)
    given = model, b.plain(), b.plain(), {"samples": torch.zeros(1, *SIZE)}, 2.0
    training = b.part("nodes.training")
    for teacher in (("euler", "karras"), ("auto", "auto")):
        said.clear()
        with (
            patch.dict(training.EFFORTS, quick=1500),
            patch.object(b.part("nodes.notices"), "server", lambda: host),
        ):
            run = b.node["S4STrainSolver"].train(*given, "3", "quick", *teacher, 8, 1, node="5")
        pack, _, report = run["result"]
        (sentence,) = [text for node, text in said if node == "5"]
        shown = re.fullmatch(
            r"At most ([\d,]+) model calls: about [\d:]+ at \S+ calls a second, (\d+) MB\.",
            sentence,
        )
        most, spent = int(shown[1].replace(",", "")), pack.metadata["training"]["calls"]
        assert spent <= most < 3 * spent, (spent, most)
        need = model.model.memory_required([64, *SIZE]) + model.model_size()
        assert int(shown[2]) == max(1, round(need / 1e6))
        first = next(k for k, (_, data) in enumerate(said) if "teacher samples" in str(data))
        assert said.index(("5", sentence)) < first
        events = [data for event, data in said[:first] if event == "s4s.training"]
        assert events[-1]["estimate"] == sentence and not events[0]["estimate"]
        end = re.escape(f"{sentence} It came to {spent:,} calls; this run took ") + r"[\d:]+\."
        assert re.search(end, report)
