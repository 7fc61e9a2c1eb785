"""Models that write into their arguments or into their last result, around a clean denoiser."""

import torch


def _writing(write):
    """A model that answers like `denoise`, then spoils its arguments."""

    def wrap(denoise):
        def spoiling(x, sigma, *rest):
            result = denoise(x.clone(), sigma.clone(), *rest)
            write(x, sigma)
            return result

        return spoiling

    return wrap


def _scaling(denoise):
    """x *= c_in; sigma.log_(): what networks do with their input, here undone in the answer."""

    def scaling(x, sigma, *rest):
        clean, level = x.clone(), sigma.clone()
        x *= 0.5
        sigma.log_()
        return denoise(clean, level, *rest)

    return scaling


def _answering(answer):
    """A model that writes its answer over its input, and returns that."""

    def wrap(denoise):
        return lambda x, sigma, *rest: answer(x.copy_(denoise(x.clone(), sigma, *rest)))

    return wrap


def _later(denoise):
    """A model that spoils the input of the call before."""
    last = []

    def spoiling(x, sigma, *rest):
        for old in last:
            old.zero_()
        last[:] = [x]
        return denoise(x.clone(), sigma, *rest)

    return spoiling


WRITERS = {
    "scaled": _scaling,
    "mul_": _writing(lambda x, sigma: x.mul_(3)),
    "slice": _writing(lambda x, sigma: x.__setitem__(slice(None), 7.0)),
    "view": _writing(lambda x, sigma: x.view(-1)[::2].add_(1)),
    "clamp_": _writing(lambda x, sigma: torch.clamp_(x, -0.1, 0.1)),
    "data": _writing(lambda x, sigma: x.data.mul_(3)),
    "numpy": _writing(lambda x, sigma: x.detach().numpy().fill(5)),
    "sigma": _writing(lambda x, sigma: sigma.mul_(2)),
    "input": _answering(lambda x: x),
    "view of the input": _answering(lambda x: x.view(x.shape)),
    "later": _later,
}
"""Ways to write into an argument; the answers are the clean ones."""


def reusing_its_result(denoise):
    """A model that returns the same tensor for all inputs of one shape."""
    results = {}

    def reusing(x, sigma, *rest):
        answer = denoise(x, sigma, *rest)
        return results.setdefault(x.shape, torch.empty_like(answer.detach())).copy_(answer)

    return reusing


FAULTS = WRITERS | {"result": reusing_its_result}
