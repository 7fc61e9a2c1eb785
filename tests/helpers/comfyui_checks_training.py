"""Checks of training and comparing in the graph, and of the model that both work on."""

import os
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

from comfyui_bench import refusal


def check_pixels_per_latent(b):
    """From the VAE, otherwise from the latent format, never guessed."""
    pixels, demo = b.part("s4s_core.app.comfyui").pixels_per_latent, b.demo()
    unknown, large = b.null_model()[0], SimpleNamespace(spacial_compression_decode=lambda: 16)
    assert pixels(unknown.model, large) == 16
    assert pixels(demo[0].model, demo[4]) == pixels(demo[0].model) == 1
    if not hasattr(unknown.model.latent_format, "spacial_downscale_ratio"):
        assert pixels(unknown.model) is None


def check_identity_depends_on_the_weights_only(b):
    identity = b.part("s4s_core.app.comfyui").identity
    one, two = (b.demo()[0].model for _ in range(2))
    assert identity(one) == identity(two) and identity(one).startswith("comfy:")
    assert identity(b.demo()[0].model.bfloat16()) == identity(one)
    other = b.demo()[0].model
    for parameter in other.parameters():
        parameter.data.mul_(1.1)
    assert identity(other) != identity(one)


def check_training_resumes_to_the_same_solver(b):
    """A training that is interrupted and resumed gives the same solver as one in one go."""
    import comfy.model_management as management
    import torch

    training = b.part("nodes.training")
    training.EFFORTS["quick"] = 2500
    throttle = b.part("s4s_core.app.progress").Throttle
    training.Throttle = lambda: throttle(pause=1e9)  # one preview: calls are counted below
    wave = lambda x, time: (3 * x + time.view(-1, 1, 1, 1) / 300).sin()  # noqa: E731
    model, network = b.null_model(answer=wave)
    latent, views = {"samples": torch.zeros(1, 4, 4, 4)}, []
    b.part("nodes.notices").send = lambda event, data: views.append((event, data))

    def train(stop=None):
        network.calls = 0
        forward = network.forward

        def counted(self, x, time, **more):
            if stop is not None and network.calls > stop:
                management.interrupt_current_processing()
            return forward(self, x, time, **more)

        given = model, b.plain(), b.plain(), latent, 1.0
        options = "3,4", "quick", "euler", "karras", 12, 1
        with patch.object(network, "forward", counted):
            return b.node["S4STrainSolver"].train(*given, *options, node="5")

    whole = train()
    pack, preview, report = whole["result"]
    assert pack.nfes == (3, 4) and pack.space == "ve"
    assert pack.metadata["teacher"]["nfe"] == 12 and pack.metadata["cfg"] == [1.0, 1.0]
    assert "resolution" not in pack.metadata and pack.metadata["thumbnail"]
    for scores in pack.metadata["scores"].values():
        assert scores["rmse"] < 1.05 * scores["initial"]
    assert preview.ndim == 4 and preview.shape[-1] == 3 and "3 steps" in report
    events = [data for event, data in views if event == "s4s.training"]
    shares = [view["progress"] for view in events]
    assert shares == sorted(shares) and events[-1]["status"] == "done"
    assert any(view["eta"] for view in events) and any(view["preview"] for view in events)
    assert training.running() is None
    full, home = network.calls, b.part("s4s_core.app.folders").data_home() / "comfyui"
    assert not list(home.iterdir())
    (home / "abandoned").mkdir()
    os.utime(home / "abandoned", (0, 0))

    views.clear()
    try:
        train(stop=full * 2 // 3)
        raise AssertionError("not stopped")
    except management.InterruptProcessingException:
        assert len(list(home.glob("*/state.safetensors"))) == 1
        assert views[-1][1]["status"] == "cancelled" and training.running() is None
    again = train()["result"][0]
    assert network.calls < full * 0.6, (network.calls, full)  # the teacher's results are kept too
    assert again == pack and not list(home.iterdir())


def check_training_for_strengths(b):
    """With the core's teacher, and with a sampler of the host's, from lower levels."""
    import torch

    training = b.part("nodes.training")
    training.EFFORTS["quick"] = 3000
    level_of = b.part("s4s_core.strength").level_of
    for kind in ("EPS", "flow"):
        model, _ = b.null_model(kind=kind.upper(), answer=lambda x, time: (3 * x).sin())
        for teacher in (("auto", "auto"), ("dpmpp_2m", "karras")):
            given = model, b.plain(), b.plain(), {"samples": torch.zeros(1, 4, 4, 4)}, 1.0
            trained = b.node["S4STrainSolver"].train(
                *given, "3", "quick", *teacher, 10, 1, strengths="0.4, .7"
            )
            pack, _, report = trained["result"]
            assert [part.nfe for part in pack.parts] == [3, 3]
            known = b.core_model(kind)  # the host's levels, by the core's own times
            for part, strength in zip(pack.parts, (0.7, 0.4), strict=True):
                assert abs(part.sigmas[0] / level_of(known, strength) - 1) < 0.01, kind
                assert pack.metadata["scores"][part.part_name]["strength"] == strength
                assert f"3 steps at strength {strength:g}: " in report
    train = b.node["S4STrainSolver"]
    assert train.VALIDATE_INPUTS("5", "0.3, 0.5") is True and train.VALIDATE_INPUTS("5") is True
    for bad, said in (("1.5", "between 0.01 and 0.99"), ("0", "between"), ("much", "numbers")):
        assert said in train.VALIDATE_INPUTS("5", bad)


def check_a_training_that_only_lacks_its_pictures_is_not_repeated(b):
    """Interrupted when the solver is trained: the teacher that was chosen is still known."""
    import comfy.model_management as management
    import torch

    training = b.part("nodes.training")
    training.EFFORTS["quick"] = 2500
    model, network = b.null_model(answer=lambda x, time: (3 * x).sin())
    given = model, b.plain(), b.plain(), {"samples": torch.zeros(1, 4, 4, 4)}, 1.0
    train = partial(b.node["S4STrainSolver"].train, *given, "3", "quick", "auto", "auto", 6, 1)
    stop = management.InterruptProcessingException()
    with patch.object(training.Previews, "final", side_effect=stop):
        try:
            train()
            raise AssertionError("not stopped")
        except management.InterruptProcessingException:
            full, network.calls = network.calls, 0
    pack, preview, _ = train()["result"]
    assert pack.nfes == (3,) and preview.ndim == 4 and network.calls < full / 10


def check_abandoned_trainings_are_removed(b):
    """After two weeks, but never while a process works on them."""
    import time

    training, locks = b.part("nodes.training"), b.part("s4s_core.lock")
    home = b.base / "trainings"
    for name in ("old", "new", "running"):
        (home / name).mkdir(parents=True)
        (home / name / training.STATE).write_bytes(b"state")
    with locks.Lock(home / "running" / training.LOCK) as lock:
        lock.take()
        for name, days in (("old", 15), ("new", 13), ("running", 400)):
            then = time.time() - days * 24 * 3600
            os.utime(home / name, (then, then))
        training.remove_abandoned(home)
        assert sorted(path.name for path in home.iterdir()) == ["new", "running"]


def check_previews_run_in_smaller_batches_if_memory_runs_out(b):
    import torch

    training, session = b.part("nodes.training"), b.part("nodes.session")
    table, latent = b.solver("EPS")[4], {"samples": torch.zeros(1, 4, 4, 4)}

    def results(most):
        def answer(x, time):
            if len(x) > most:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
            return (3 * x).sin()

        def work(ready):
            results = []
            for teacher in (table, session.host_teacher(ready, "euler", "karras", 4)):
                previews = training.Previews(ready)
                previews.teacher = teacher
                results += previews.results({"S4S": table}).values()
            return results

        model, _ = b.null_model(answer=answer)
        return session.run_in_session(model, [b.plain()], b.plain(), 1.0, latent, 0, work)

    for whole, parts in zip(results(most=4), results(most=1), strict=True):
        assert whole.shape == (4, 4, 4, 4) and torch.allclose(whole, parts, atol=1e-4)
    refusal(lambda: results(most=0), "Out of memory")


def check_prompts_share_calls(b):
    """Each row gets its own prompt, whether prompts share calls or not."""
    import torch

    session, comfyui = b.part("nodes.session"), b.part("s4s_core.app.comfyui")
    model, positive, negative, latent, _, clip = b.demo()
    names = ["animal face", "heart", "flag"]
    prompts = [clip.encode(name) for name in names]
    core, label = b.core_model("EDM"), torch.tensor([0, 2, 1, 1])
    classes = torch.tensor([core.classes.index(name) for name in names])
    x, sigma = torch.randn(4, 3, 32, 32) * 3, torch.tensor([3.0, 2.0, 1.0, 3.0])
    want = core.denoise(x, sigma, classes[label])

    def work(ready):
        drawn = ready.conditions(64, torch.Generator())
        assert ready.shape == (3, 32, 32) and set(drawn.tolist()) == {0, 1, 2}
        return ready.denoise(x, sigma, label), len(ready.prompts.groups)

    def run():
        return session.run_in_session(model, prompts, negative, 2.0, latent, 0, work)

    together, groups = run()
    assert groups == 1 and (together - want).abs().max() < 1e-4
    with patch.object(comfyui, "_sharing_key", lambda prompt: None):
        apart, groups = run()
    assert groups == 3 and (apart - want).abs().max() < 1e-4
    assert len(b.part("nodes.training").encode_prompts(clip, " heart \n\nflag\n")) == 2


def check_a_model_has_its_own_times(b):
    """`uniform` is uniform in these times, and the default teacher of a flow model uses it, from
    the level 1, which the host rounds to 1.0000001 for some shifts."""
    import torch

    session, core, teacher = map(b.part, ("nodes.session", "s4s_core", "s4s_core.teacher"))
    latent = {"samples": torch.zeros(1, 4, 4, 4)}

    def asked(question, kind, **settings):
        model, _ = b.null_model(kind=kind, **settings)
        return session.run_in_session(model, [b.plain()], b.plain(), 1.0, latent, 0, question)

    first = asked(lambda ready: teacher.default_teacher(ready).sigmas[:3], "FLOW", shift=3.0)
    assert abs(first - [1, 0.98277, 0.96429]).max() < 1e-3, first
    sampling = b.null_model(kind="FLOW", shift=1.32)[0].get_model_object("model_sampling")
    assert float(sampling.sigma_max) > 1
    assert asked(lambda ready: ready.sigma_max, "FLOW", shift=1.32) == 1
    nodes = asked(lambda ready: core.schedule("uniform", 3, ready), "EPS")
    sampling = b.null_model()[0].get_model_object("model_sampling")
    assert torch.allclose(nodes[:3].float(), sampling.sigma(torch.tensor([999.0, 666.0, 333.0])))
    assert asked(lambda ready: ready.times, "EDM") is None


def check_comparison_ranks_at_equal_model_calls(b):
    model, positive, negative, latent, vae, _ = b.demo()
    given = model, b.solver(), positive, negative, latent, 3, 5, 2.0
    options = "euler, heun", "karras", "auto", "auto", 20, vae
    picture, text = b.node["S4SCompare"].compare(*given, *options)["result"]
    assert picture.ndim == 4 and picture.shape[0] == 1 and 0 <= picture.min() <= picture.max() <= 1
    rows = {line.split()[0]: line.split() for line in text.splitlines()[1:]}
    assert set(rows) == {"teacher", "S4S,", "euler", "heun"}
    assert rows["teacher"][1] == "20" and float(rows["teacher"][2]) == 0
    assert int(rows["heun"][1]) <= 5 and rows["euler"][1] == "5"
    assert float(rows["S4S,"][-2]) < float(rows["euler"][2])


def check_the_clock_waits_for_the_device(b):
    """Only reading results waits for a GPU, so the clock is read after that."""
    import torch

    compare, events = b.part("nodes.compare_node"), []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.Tensor.tolist:
                events.append("read")
            return function(*args, **kwargs or {})

    comparison = compare.Comparison.__new__(compare.Comparison)
    comparison.entries, comparison.x = [], None
    comparison.model = SimpleNamespace(run=lambda solver, x: torch.zeros(2, 3))
    clock = SimpleNamespace(perf_counter=lambda: events.append("clock") or 0.0)
    with patch.object(compare, "time", clock), Watch():
        comparison._measure("one", SimpleNamespace(nfe=5))
    assert events == ["clock", "read", "clock"], events


def check_the_demo_reads_categories_and_decodes(b):
    clip = b.demo()[5]
    assert clip.tokenize("An ANIMAL FACE please") == clip.classes.index("animal face")
    assert clip.tokenize("animal") == clip.classes.index("animal")
    assert clip.tokenize("") == clip.tokenize("a xylophone") == len(clip.classes)
    model, *_, vae, _ = b.demo()
    pictures_of, x = b.part("s4s_core.app.comfyui").pictures_of, b.core_sample("EDM", b.solver())
    exact, rough = pictures_of(model.model, x, vae), pictures_of(model.model, x)
    assert exact.shape == rough.shape == (2, 3, 32, 32)
    assert (exact - rough).abs().max() < 1e-3
