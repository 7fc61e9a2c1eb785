"""Published lists of times and weights, written as tables of ours and run."""

import math
import re

import pytest
import torch

from s4s_core import classical_table, sample
from s4s_core.errors import TableError
from s4s_core.foreign import table_from_lists
from s4s_core.spaces import DiscreteTimes, log_snr

# iPNDM as it is published: newest evaluation first, a warm-up from order 1.
IPNDM = [
    [1.0],
    [3 / 2, -1 / 2],
    [23 / 12, -16 / 12, 5 / 12],
    [55 / 24, -59 / 24, 37 / 24, -9 / 24],
    [55 / 24, -59 / 24, 37 / 24, -9 / 24],
]
OLDEST_FIRST = [row[::-1] for row in IPNDM]
NODES = {"ve": [14.6, 5.0, 2.0, 0.7, 0.2, 0.0], "flow": [1.0, 0.9, 0.7, 0.4, 0.15, 0.0]}
FORMS = {"ve": "noise", "flow": "velocity"}


def ipndm(space, sigmas=None):
    return classical_table(
        "ipndm", NODES[space] if sigmas is None else sigmas, order=4, space=space
    )


def close(one, other, tolerance=1e-12):
    """Equal tables but for rounding."""
    assert (one.family, one.order, one.form, one.space) == (
        other.family,
        other.order,
        other.form,
        other.space,
    )
    for name, array in one.arrays.items():
        assert array == pytest.approx(other.arrays[name], rel=tolerance, abs=tolerance), name
    return True


@pytest.mark.parametrize("space", ["ve", "flow"])
@pytest.mark.parametrize(("weights", "newest_first"), [(IPNDM, True), (OLDEST_FIRST, False)])
def test_mean_weights(space, weights, newest_first):
    given = table_from_lists(
        NODES[space], weights, space=space, form=FORMS[space], newest_first=newest_first
    )
    assert given == ipndm(space)


@pytest.mark.parametrize("space", ["ve", "flow"])
@pytest.mark.parametrize("newest_first", [True, False])
def test_absolute_weights(space, newest_first):
    """x_i = x_{i-1} + sum_j w_j f in both spaces, so w = (sigma_i - sigma_{i-1}) b."""
    nodes, rows = NODES[space], IPNDM if newest_first else OLDEST_FIRST
    weights = [[(nodes[i + 1] - nodes[i]) * w for w in row] for i, row in enumerate(rows)]
    options = {"space": space, "form": FORMS[space], "newest_first": newest_first, "absolute": True}
    assert close(table_from_lists(nodes, weights, **options), ipndm(space))


def test_absolute_weights_of_the_data_form():
    """x_i = (sigma_i / sigma_{i-1}) x_{i-1} + w x0: DDIM as diffusers writes it."""
    nodes = NODES["ve"]
    weights = [[1 - end / start] for start, end in zip(nodes, nodes[1:], strict=False)]
    table = table_from_lists(nodes, weights, form="data", absolute=True)
    x = torch.tensor([[3.0, -2.0]], dtype=torch.float64)
    euler = classical_table("euler", nodes)

    def denoise(x, sigma):
        return (x / (1 + sigma[:, None] ** 2)).tanh()

    torch.testing.assert_close(
        sample(denoise, x, table), sample(denoise, x, euler), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("space", ["ve", "flow"])
def test_times_as_log_snr(space):
    nodes = torch.tensor(NODES[space], dtype=torch.float64)
    lambdas = log_snr(space, nodes).tolist()
    assert lambdas[-1] == math.inf and (space == "ve" or lambdas[0] == -math.inf)
    given = table_from_lists(lambdas, IPNDM, space=space, form=FORMS[space], domain="logsnr")
    assert close(given, ipndm(space)) and given.ending == 0.0


def test_times_as_discrete_times():
    times = DiscreteTimes.scaled_linear()
    steps = [999, 800.5, 500, 250.25, 100, 0]
    sigmas = times.sigma(torch.tensor(steps, dtype=torch.float64))
    given = table_from_lists(steps, IPNDM, domain="time", times=times)
    assert given == ipndm("ve", sigmas.tolist())
    assert given.sigmas[0] == pytest.approx(14.6146, abs=1e-4) and given.ending == pytest.approx(
        0.0292, abs=1e-4
    )


@pytest.mark.parametrize("domain", ["sigma", "logsnr", "time"])
def test_decoupled_call_times_are_kept_and_used(domain):
    """The network is told other noise levels than those of the update, in whatever domain."""
    times = DiscreteTimes.scaled_linear()
    nodes, calls = [14.0, 5.0, 2.0, 0.7, 0.2, 0.03], [13.0, 5.5, 1.9, 0.71, 0.15]

    def spell(sigmas):
        sigmas = torch.tensor(sigmas, dtype=torch.float64)
        domains = {
            "sigma": lambda: sigmas,
            "logsnr": lambda: -sigmas.log(),
            "time": lambda: times.time(sigmas),
        }
        return domains[domain]().tolist()

    table = table_from_lists(
        spell(nodes), IPNDM, domain=domain, times=times, call_nodes=spell(calls)
    )
    assert table.call_sigmas == pytest.approx(calls, rel=1e-9)
    assert table.sigmas == pytest.approx(nodes, rel=1e-9)
    told = []

    def denoise(x, sigma):
        told.append(sigma.tolist())
        return 0.5 * x

    sample(denoise, torch.ones(2, 3, dtype=torch.float64), table)
    assert told == [[pytest.approx(call, rel=1e-9)] * 2 for call in calls]


def test_without_call_times_the_nodes_are_called():
    assert table_from_lists(NODES["ve"], IPNDM).call_sigmas.tolist() == NODES["ve"][:-1]


def test_tensors_and_tuples_are_lists_too():
    given = table_from_lists(
        torch.tensor(NODES["ve"], dtype=torch.float64), tuple(map(tuple, IPNDM))
    )
    assert given == ipndm("ve")
    rows = [torch.tensor(row, dtype=torch.float64) for row in OLDEST_FIRST]
    assert table_from_lists(NODES["ve"], rows, newest_first=False) == ipndm("ve")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"domain": "alpha"}, "times can be given as sigma, logsnr, time"),
        ({"domain": "time"}, "the last one with a DiscreteTimes as `times`"),
        ({"space": "vp"}, "Unknown space 'vp'"),
        ({"form": "velocity"}, "no form 'velocity': choose one of noise, data"),
        ({"weights": IPNDM[:-1]}, "5 steps need as many lists of weights, not 4"),
        ({"weights": [*IPNDM, [1.0]]}, "5 steps need as many lists of weights, not 6"),
        ({"weights": [[]] * 5}, "order must be"),
        ({"weights": [[1.0, 0.5], *IPNDM[1:]]}, "evaluation that does not exist"),
        ({"weights": [["a"], *IPNDM[1:]]}, "must be lists of numbers"),
        ({"weights": [1.0] * 5}, "must be lists of numbers"),
        ({"weights": [[math.nan], *IPNDM[1:]]}, "not finite"),
        ({"nodes": ["x"] * 6}, "must be lists of numbers"),
        ({"nodes": NODES["ve"][::-1]}, "strictly decreasing"),
        ({"nodes": [14.6, 5.0, 5.0, 0.7, 0.2, 0.0]}, "strictly decreasing"),
        ({"nodes": [math.nan, *NODES["ve"][1:]]}, "not finite"),
        ({"nodes": [1.0], "weights": []}, "order must be|2 or more nodes"),
        ({"call_nodes": [1.0]}, "needs 5 calls, not 1"),
        ({"call_nodes": [5.0, 4.0, 3.0, 2.0, 0.0]}, "must be positive"),
        ({"nodes": NODES["flow"], "space": "flow"}, "noise form cannot start a flow model"),
    ],
)
def test_refusals(options, fault):
    options = {"nodes": NODES["ve"], "weights": IPNDM, **options}
    with pytest.raises(TableError) as caught:
        table_from_lists(options.pop("nodes"), options.pop("weights"), **options)
    assert re.search(fault, str(caught.value)) and len(str(caught.value).splitlines()) == 1
