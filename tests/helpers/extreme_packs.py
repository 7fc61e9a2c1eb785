"""Valid packs with numbers that are hard to display."""

from s4s_core.table import SolverPack, SolverTable

EXTREMES = (
    [1.7e308, 1.0, 0.0],
    [1.7e308, 1e308],
    [1.0, 5e-324, 0.0],
    [1e-308, 1e-320],
    [1.7e308, 1.0, 5e-324],
    [1.0000000000000002, 1.0],
)
"""Valid noise levels that are hard to plot."""


def extreme_pack(sigmas):
    """Return a valid pack with these nodes and coefficients of the same magnitudes."""
    calls = len(sigmas) - 1
    b = [[(-1) ** i * sigmas[i]] for i in range(calls)]
    return SolverPack.of(SolverTable("lms", 1, "noise", "ve", sigmas, sigmas[:-1], {"b": b}))
