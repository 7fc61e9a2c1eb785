"""What a model is asked before it is trained with: rows by themselves, gradients, its errors."""

import pytest
import torch
from learners import ALL_METHODS, METHODS, changed, guided, message_of, small, tiny_fit

from s4s_core import names
from s4s_core.demo import load_demo
from s4s_core.errors import ModelError, S4SError, TrainingError
from s4s_core.training.check import CHECK_CALLS, check_model, explained, gradient_error
from s4s_core.training.memory import Batcher


def told(space="ve"):
    """A mixture under guidance whose results also depend on a condition."""
    model = guided(space)

    def denoise(x, sigma, cond, guidance=None):
        return model.denoise(x, sigma, None, guidance) * (1 + cond[:, None].to(x))

    def conditions(batch, generator):
        return torch.rand(batch, generator=generator)

    return changed(model, denoise=denoise, conditions=conditions, takes_guidance=True)


NO_GRADIENT = "its results have no gradient"


def first(rows):
    return None if rows is None else rows[:1].expand_as(rows)


ROWS = {
    "the first level": lambda ask: lambda x, s, c, g=None: ask(x, first(s), c, g),
    "the last level": lambda ask: lambda x, s, c, g=None: ask(x, first(s.flip(0)), c, g),
    "the mean level": lambda ask: lambda x, s, c, g=None: ask(x, s.mean().expand_as(s), c, g),
    "the first condition": lambda ask: lambda x, s, c, g=None: ask(x, s, first(c), g),
    "the last condition": lambda ask: lambda x, s, c, g=None: ask(x, s, first(c.flip(0)), g),
    "the first scale": lambda ask: lambda x, s, c, g=None: ask(x, s, c, first(g)),
    "the first result": lambda ask: lambda *given: first(ask(*given)),
    "results in another order": lambda ask: lambda *given: ask(*given).flip(0),
    "coupled results": lambda ask: lambda *given: (y := ask(*given)) - (len(y) > 1) * y.mean(0),
    "coupled points": lambda ask: lambda x, *given: ask(x + x.flip(0) * (len(x) > 1), *given),
}


def counting(denoise, calls):
    def counted(x, *given):
        calls.append(len(x))
        return denoise(x, *given)

    return counted


@pytest.mark.parametrize("space", ["ve", "flow"])
@pytest.mark.parametrize("method", ["gauss-newton", "joint"])
@pytest.mark.parametrize("fault", ROWS)
def test_a_model_whose_rows_depend_on_each_other_is_refused_before_it_teaches(fault, method, space):
    model, calls = told(space), []
    denoise = counting(ROWS[fault](model.denoise), calls)
    with pytest.raises(S4SError, match=f"depends on the other rows|{NO_GRADIENT}") as error:
        tiny_fit(changed(model, denoise=denoise, takes_guidance=True), method=method)
    assert message_of(error) and sum(calls) <= CHECK_CALLS


def test_guidance_that_fails_is_refused_before_it_teaches():
    """Unguided calls come first; pairs are drawn without telling the guidance."""
    model, calls = guided(), []

    def denoise(x, sigma, cond=None, guidance=None):
        if guidance is not None:
            raise ValueError("no scale")
        return model.denoise(x, sigma)

    with pytest.raises(ModelError, match="failed with ValueError: no scale") as error:
        lies = changed(model, denoise=counting(denoise, calls), takes_guidance=True)
        tiny_fit(lies, teacher=lambda x, cond: 0 * x)
    assert message_of(error) and sum(calls) <= CHECK_CALLS


@pytest.mark.parametrize("cfg", [1.0, 7.5])
@pytest.mark.parametrize("space", ["ve", "vp", "flow"])
def test_half_precision_is_no_dependence(space, cfg):
    model = load_demo(space, cfg)
    check_model(
        changed(
            model,
            denoise=torch.autocast("cpu", torch.bfloat16)(model.denoise),
            takes_guidance=cfg != 1,
        )
    )


@pytest.mark.parametrize("method", ALL_METHODS)
def test_a_model_for_which_memory_holds_one_row_is_asked_about_one(method):
    """Nothing that would be coupled runs, so a model that would couple rows is trained with."""
    model, calls = small(), []

    def narrow(x, sigma):
        if len(x) > 1:
            raise MemoryError
        calls.append(torch.is_grad_enabled())
        return model.denoise(x, sigma)

    check_model(changed(model, denoise=narrow), names.METHODS[method], batcher := Batcher(2))
    assert batcher.batch == 1 and len(calls) == CHECK_CALLS - 2
    assert sum(calls) == 2 * (method != "gauss-newton")


# --- gradients


def without(part):
    """A model that computes a part of its calls, or of a call's rows, without a gradient."""

    def wrap(denoise):
        def partly(x, sigma):
            plain = denoise(x.detach(), sigma.detach())
            return torch.where(part(x, sigma)[:, None], plain, denoise(x, sigma))

        return partly

    return wrap


def spoiling_rows(write):
    """A model that writes only into calls of several rows."""

    def wrap(denoise):
        def spoiling(x, sigma):
            result = denoise(x.clone(), sigma.clone())
            if len(x) > 1:
                write(x, sigma)
            return result

        return spoiling

    return wrap


def every(x):
    return torch.ones(len(x), dtype=torch.bool)


PARTLY = {
    "several rows": (without(lambda x, s: every(x) & (len(x) > 1)), NO_GRADIENT),
    "the first row": (without(lambda x, s: torch.arange(len(x)) == 0), NO_GRADIENT),
    "the last row": (without(lambda x, s: torch.arange(len(x)) == len(x) - 1), NO_GRADIENT),
    "low levels": (without(lambda x, s: s.detach() < 10), NO_GRADIENT),
    "high levels": (without(lambda x, s: s.detach() > 10), NO_GRADIENT),
    "x": (lambda denoise: lambda x, s: denoise(x.detach(), s), NO_GRADIENT),
    "nan": (lambda denoise: lambda x, s: (y := denoise(x, s)) + 0 * (y - y).sqrt(), "NaN"),
    "writes": (spoiling_rows(lambda x, s: x.mul_(2)), "it writes into its arguments"),
    "writes levels": (spoiling_rows(lambda x, s: s.mul_(2)), "it writes into its arguments"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fault", PARTLY)
def test_a_gradient_that_is_missing_in_part_is_refused_before_any_pair(fault, method):
    (wrap, problem), model, calls = PARTLY[fault], small(), []

    def counted(x, sigma):
        calls.append(len(x))
        return model.denoise(x, sigma)

    with pytest.raises(TrainingError, match=f"back-propagation: .*{problem}") as error:
        tiny_fit(changed(model, denoise=wrap(counted)), method=method)
    assert "gauss-newton" in message_of(error) and sum(calls) <= 2 * CHECK_CALLS


@pytest.mark.parametrize("method", METHODS)
def test_times_are_only_learned_from_a_model_that_has_a_gradient_in_sigma(method):
    model = small()
    detached = changed(model, denoise=lambda x, sigma: model.denoise(x, sigma.detach()))
    if method == "s4s":
        assert tiny_fit(detached, method=method).pack == tiny_fit(model, method=method).pack
        return
    with pytest.raises(TrainingError, match="no gradient in sigma, which learning times") as error:
        tiny_fit(detached, method=method)
    message_of(error)


def test_a_model_may_be_blind_to_sigma():
    blind = changed(small(), denoise=lambda x, sigma: 0.1 * torch.tanh(x / 80))
    check_model(blind, names.METHODS["joint"])


@pytest.mark.parametrize("method", METHODS)
def test_an_exact_flow_model_has_no_gradient_where_only_noise_is(method):
    """There it predicts the mean of its data, whatever x is."""

    def denoise(x, sigma):
        left = (1 - sigma)[:, None]
        return left * x / (left.square() + sigma[:, None].square())

    model = changed(small(), denoise=denoise)
    model.space, model.sigma_min, model.sigma_max = "flow", 1e-3, 1.0
    assert not denoise(torch.ones(1, 6), torch.ones(1)).any()
    check_model(model, names.METHODS[method])


# --- errors of a model's own code


class InterruptProcessingException(Exception):
    """As ComfyUI's: it is only known by its name."""


class Own(Exception):
    pass


ERRORS = (
    RuntimeError("boom\nat line 3"),
    ZeroDivisionError("division by zero"),
    OSError(5, "Input/output error"),
    KeyError("layer"),
    StopIteration(),
    NotImplementedError(),
    Exception("plain"),
    Own("own"),
)


class Failing(torch.autograd.Function):
    """The identity, whose backward pass fails."""

    error: Exception

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise Failing.error


def failing(error, backward, after):
    """A model that fails, forward or backward, once it has been called for so many samples."""
    inner, calls = small(), 0

    def denoise(x, sigma):
        nonlocal calls
        calls += len(x)
        if calls > after and torch.is_grad_enabled():
            if not backward:
                raise error
            Failing.error = error
            return Failing.apply(inner.denoise(x, sigma))
        return inner.denoise(x, sigma)

    return changed(inner, denoise=denoise)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_error_is_explained_where_gradients_are_first_taken(error, backward):
    with pytest.raises(ModelError, match="The model failed with ") as raised:
        tiny_fit(failing(error, backward, 0), method="s4s", teacher=lambda x, cond: 0.01 * x)
    assert message_of(raised)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("error", ERRORS[:4], ids=lambda error: type(error).__name__)
def test_errors_that_are_not_about_gradients_stay_what_they_are_in_training(error, backward):
    """Their traceback says where a driver, a file or the model's code failed."""
    with pytest.raises(type(error)) as raised:
        model = failing(error, backward, CHECK_CALLS)
        tiny_fit(model, method="s4s", teacher=lambda x, cond: 0.01 * x)
    assert raised.value is error


def test_torchs_words_about_gradients_are_known():
    x = torch.ones(2, requires_grad=True)

    def twice():
        (total := x.square().sum()).backward()
        total.backward()

    def written():
        y = x.exp()
        y.add_(1)
        y.sum().backward()

    def frozen():
        with torch.inference_mode():
            y = torch.ones(2)
        (x * y).sum().backward()

    wrong = (
        *(lambda: x.add_(1), lambda: torch.mul(x, 2, out=torch.ones(2)), written, twice, frozen),
        *(lambda: x.detach().sum().backward(), lambda: x.numpy()),
    )
    for attempt in wrong:
        with pytest.raises(TrainingError, match="back-propagation"), explained(gradient_error):
            attempt()
    with pytest.raises(RuntimeError, match="shapes"), explained(gradient_error):
        torch.ones(2, 3) @ torch.ones(2, 3)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_error_of_a_model_is_explained_when_it_is_checked(error):
    def denoise(x, sigma):
        raise error

    with pytest.raises(ModelError, match="The model failed with ") as raised:
        tiny_fit(changed(small(), denoise=denoise))
    assert raised.value.__cause__ is error and message_of(raised)


@pytest.mark.parametrize("after", [0, CHECK_CALLS])
@pytest.mark.parametrize("error", [InterruptProcessingException(), KeyboardInterrupt()])
def test_what_a_host_raises_to_interrupt_stays_what_it_is(error, after):
    with pytest.raises(type(error)):
        tiny_fit(failing(error, False, after), method="s4s", teacher=lambda x, cond: 0.01 * x)
    with pytest.raises(type(error)), explained(lambda error: ModelError("failed")):
        raise error
