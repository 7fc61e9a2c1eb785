"""What a classical solver returns for given nodes: a table's fields, as differentiable tensors."""

from typing import NamedTuple

import torch

from ..table import SolverTable


class Recipe(NamedTuple):
    """The fields of a SolverTable; the arrays are float64 tensors, differentiable in the nodes."""

    family: str
    order: int
    form: str
    space: str
    arrays: dict[str, torch.Tensor]

    def table(self) -> SolverTable:
        """Return the validated table."""
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in self.arrays.items()}
        sigmas, calls = arrays.pop("sigmas"), arrays.pop("call_sigmas")
        return SolverTable(self.family, self.order, self.form, self.space, sigmas, calls, arrays)


def default_form(space: str) -> str:
    """Return the form in which a step is plain quadrature in sigma: noise, or velocity for flow."""
    return "noise" if space == "ve" else "velocity"
