"""The one loop that runs every table. Nothing else in the repository steps an ODE."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

from .contract import accepts, shown
from .errors import ModelError
from .model import BoundDenoiser, Condition, Denoiser, PlainDenoiser, arguments
from .program import Move, Program, lower
from .slicing import from_node
from .table import SolverTable


class Cursor(NamedTuple):
    """A place on a trajectory: accepted state, next point to evaluate, history (newest first)."""

    state: torch.Tensor
    point: torch.Tensor
    history: tuple[torch.Tensor, ...] = ()


class ModelCall(NamedTuple):
    """What a callback gets after model call number `call` (from 0) of `nfe`."""

    call: int
    nfe: int
    sigma: torch.Tensor
    x: torch.Tensor
    denoised: torch.Tensor


def lower_table(table: SolverTable) -> Program:
    """Lower a table to a Program of float64 tensors."""
    arrays = {name: torch.tensor(array) for name, array in table.arrays.items()}
    return lower(table.family, table.space, table.form, arrays)


@lru_cache(maxsize=64)
def compiled(table: SolverTable, start: int = 0) -> Program:
    """Return the program of a table from node `start` on, in plain floats; cached."""
    return lower_table(from_node(table, start)).floats()


def _broadcast(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Shape a scalar or a weight per row to multiply x."""
    if weight.ndim == 0:
        return weight.to(x.dtype)
    return weight.to(x).reshape(weight.shape + (1,) * (x.ndim - weight.ndim))


def _combine(move: Move, state: torch.Tensor, history: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return scale * state + sum_j weights[j] * history[j]."""
    scale, weights, history = move.scale, move.weights, history[: move.reach]
    if isinstance(weights, tuple):
        terms = zip(weights, history, strict=True)
        if scale == 1:
            weight, entry = next(terms)
            out = torch.add(state, entry, alpha=weight)
        else:
            out = state * scale
        for weight, entry in terms:
            out.add_(entry, alpha=weight)
        return out
    out = _broadcast(torch.as_tensor(scale), state) * state
    for row_weight, entry in zip(weights.unbind(-1), history, strict=True):
        out = out + _broadcast(row_weight, state) * entry
    return out


def _history_entry(
    data_scales: torch.Tensor | list[float] | None,
    call: int,
    point: torch.Tensor,
    x0: torch.Tensor,
) -> torch.Tensor:
    """Return a copy of x0, or point - q x0.

    A copy, because a compiled model may overwrite its last result with the next one.
    """
    if data_scales is None:
        return x0.clone()
    if isinstance(data_scales, list):
        return torch.sub(point, x0, alpha=data_scales[call])
    return point - _broadcast(data_scales[..., call], point) * x0


def check_x0(
    x0: object, point: torch.Tensor, maker: str = "model", function: str = "denoise(x, sigma)"
) -> torch.Tensor:
    """Return x0 in the point's dtype; raise ModelError if its type, shape or device is wrong."""
    if not isinstance(x0, torch.Tensor):
        got = f"a {type(x0).__name__}"
    elif x0.is_nested:
        got = "a nested tensor"
    elif x0.shape != point.shape:
        got = f"shape {tuple(x0.shape)}"
    elif x0.device != point.device:
        got = f"a tensor on {x0.device}"
    elif not x0.is_floating_point():
        got = f"a tensor of {x0.dtype}"
    elif x0.layout != torch.strided:
        got = f"a tensor of the layout {x0.layout}"
    else:
        return x0.to(point.dtype)
    raise ModelError(
        f"The {maker} returned {got} for an input of shape {tuple(point.shape)} on "
        f"{point.device}: {function} must return a dense floating-point tensor with the shape and "
        "device of x."
    )


def evaluate(
    program: Program,
    call: int,
    cursor: Cursor,
    denoise: BoundDenoiser,
    sigma: torch.Tensor,
    guidance: torch.Tensor | None = None,
) -> tuple[Cursor, torch.Tensor]:
    """Make one model call at the cursor's point; return the cursor with the new entry, and x0."""
    x0 = check_x0(denoise(cursor.point, sigma, guidance), cursor.point)
    entry = _history_entry(program.data_scales, call, cursor.point, x0)
    return cursor._replace(history=(entry, *cursor.history)[: program.depth]), x0


def advance(program: Program, call: int, cursor: Cursor) -> Cursor:
    """Return the cursor after the move that follows model call `call`."""
    move = program.moves[call]
    point = _combine(move, cursor.state, cursor.history)
    return cursor._replace(point=point, state=point if move.accept else cursor.state)


def call_vectors(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the sigmas or multipliers [..., nfe] of all calls as [nfe, batch], on x's device.

    They are copied there once, and are float32 or better even for half-precision samples: a time
    such as 812.4 needs it.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    moved = values.to(dtype).to(x.device).movedim(-1, 0)
    return moved.reshape(values.shape[-1], -1).expand(-1, x.shape[0]).contiguous()


def run(
    program: Program,
    denoise: BoundDenoiser,
    cursor: Cursor,
    first: int = 0,
    callback: Callable[[ModelCall], object] | None = None,
    trace: list[tuple[Cursor, Cursor]] | None = None,
) -> Cursor:
    """Run model calls first .. nfe-1 of a program; the point of the returned cursor is the result.

    The callback gets a ModelCall after each call. An exception in it or in the model ends the run.
    `trace` collects the cursors before and after each call, from which a run can continue.
    """
    sigmas = call_vectors(program.sigmas, cursor.point)
    scales = None if program.guidance is None else call_vectors(program.guidance, cursor.point)
    for call in range(first, program.nfe):
        before, guidance = cursor, None if scales is None else scales[call]
        cursor, x0 = evaluate(program, call, cursor, denoise, sigmas[call], guidance)
        if trace is not None:
            trace.append((before, cursor))
        if callback is not None:
            callback(ModelCall(call - first, program.nfe - first, sigmas[call], cursor.point, x0))
        cursor = advance(program, call, cursor)
    return cursor


def require_guidance(denoise: object) -> None:
    """Raise ModelError unless `denoise` has a fourth argument."""
    if not accepts(denoise, 4):
        raise ModelError(
            "This solver sets the guidance of each call, but the model cannot be told: give its "
            "denoise a fourth argument (see s4s_core.model.Denoiser), or run "
            "table.replace(guidance=None)."
        )


def _check_call(denoise: object, x: object, table: SolverTable, cond: Condition | None) -> None:
    """Raise ModelError unless `sample` can call `denoise` on x."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.ndim == 0:
        raise ModelError(f"x must be a floating-point tensor [batch, ...], not {shown(x)}.")
    if table.guidance is not None:
        require_guidance(denoise)
    elif not accepts(denoise, 2 if cond is None else 3):
        given = "x, sigma" if cond is None else "x, sigma, cond"
        raise ModelError(f"The model must be a function denoise({given}), not {shown(denoise)}.")


def sample(
    denoise: Denoiser | PlainDenoiser,
    x: torch.Tensor,
    table: SolverTable,
    cond: Condition | None = None,
    callback: Callable[[ModelCall], object] | None = None,
    *,
    start: int = 0,
    keep: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Run `table` on noised x [batch, ...] and return the result in x's shape and dtype.

    denoise(x, sigma), or denoise(x, sigma, cond) if `cond` is given, returns x0 for sigma [batch].
    A table with guidance calls denoise(x, sigma, cond, guidance); see `Denoiser`.
    `start` begins at a later node (x must be noised to its sigma). `keep` is (mask, original) for
    inpainting: where the mask is 0, the result is exactly the original. Hosts blend values between
    0 and 1 themselves, inside their model calls.
    """
    _check_call(denoise, x, table, cond)
    dtype, work = x.dtype, torch.promote_types(x.dtype, torch.float32)
    call_model: Callable[..., torch.Tensor] = denoise

    def bound(
        point: torch.Tensor, sigma: torch.Tensor, guidance: torch.Tensor | None
    ) -> torch.Tensor:
        return call_model(*arguments(point.to(dtype), sigma, cond, guidance))

    x = x.to(work)
    out = run(compiled(table, start), bound, Cursor(x, x), callback=callback).point.to(dtype)
    if keep is not None:
        mask, original = (part.to(out) for part in keep)
        out = torch.where(mask == 0, original, out)
    return out
