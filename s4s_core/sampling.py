"""The one loop that runs every table. Nothing else in the repository steps an ODE."""

from functools import lru_cache
from typing import NamedTuple

import torch

from .errors import ModelError
from .program import lower
from .slicing import tail


class Cursor(NamedTuple):
    """Where a trajectory stands: accepted state, point to evaluate next, history (newest first)."""

    state: torch.Tensor
    point: torch.Tensor
    history: tuple = ()


class Progress(NamedTuple):
    """What a callback sees after model call number `call` (from 0) of `nfe`."""

    call: int
    nfe: int
    sigma: torch.Tensor
    x: torch.Tensor
    denoised: torch.Tensor


def lower_table(table):
    """The Program of a table, as float64 tensors."""
    arrays = {name: torch.tensor(array) for name, array in table.arrays.items()}
    return lower(table.family, table.space, table.form, arrays)


@lru_cache(maxsize=64)
def compiled(table, start=0):
    """The program of a table from node `start` on, in plain floats; lowered once per table."""
    return lower_table(tail(table, start)).floats()


def _spread(weight, x):
    """A weight tensor shaped to multiply x: a scalar stays one, rows meet the batch dimension."""
    if weight.ndim == 0:
        return weight.to(x.dtype)
    return weight.to(x).reshape(weight.shape + (1,) * (x.ndim - weight.ndim))


def _combine(move, state, history):
    """scale * state + sum_j weights[j] * history[j]."""
    scale, weights, history = move.scale, move.weights, history[: move.reach]
    if isinstance(scale, float):
        terms = zip(weights, history, strict=True)
        if scale == 1:
            weight, entry = next(terms)
            out = torch.add(state, entry, alpha=weight)
        else:
            out = state * scale
        for weight, entry in terms:
            out.add_(entry, alpha=weight)
        return out
    out = _spread(scale, state) * state
    for weight, entry in zip(weights.unbind(-1), history, strict=True):
        out = out + _spread(weight, state) * entry
    return out


def _entry(data_scales, call, point, x0):
    """The history entry of an evaluation: a copy of x0, or point - q x0.

    A copy, because a compiled model may write its next result over this one.
    """
    if data_scales is None:
        return x0.clone()
    if isinstance(data_scales, list):
        return torch.sub(point, x0, alpha=data_scales[call])
    return point - _spread(data_scales[..., call], point) * x0


def _checked(x0, point):
    """x0 in the point's dtype; ModelError unless it is floating, of its shape, on its device."""
    if not isinstance(x0, torch.Tensor):
        got = f"a {type(x0).__name__}"
    elif x0.shape != point.shape:
        got = f"shape {tuple(x0.shape)}"
    elif x0.device != point.device:
        got = f"a tensor on {x0.device}"
    elif not x0.is_floating_point():
        got = f"a tensor of {x0.dtype}"
    else:
        return x0.to(point.dtype)
    raise ModelError(
        f"The model returned {got} for an input of shape {tuple(point.shape)} on {point.device}: "
        "denoise(x, sigma) must return the denoised x, floating, in the same shape and place."
    )


def evaluate(program, call, cursor, denoise, sigma):
    """Make one model call at the cursor's point: (cursor with the new history entry, x0)."""
    x0 = _checked(denoise(cursor.point, sigma), cursor.point)
    entry = _entry(program.data_scales, call, cursor.point, x0)
    return cursor._replace(history=(entry, *cursor.history)[: program.depth]), x0


def advance(program, call, cursor):
    """The cursor after the move that follows model call `call`."""
    move = program.moves[call]
    point = _combine(move, cursor.state, cursor.history)
    return cursor._replace(point=point, state=point if move.accept else cursor.state)


def call_sigmas(program, x):
    """Sigma vectors [nfe][batch] of a program on x's device, moved there in one copy.

    Half-precision samples still get float32 sigmas: a time such as 812.4 needs them.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    sigmas = program.sigmas.to(dtype).to(x.device)
    return sigmas.movedim(-1, 0).reshape(program.nfe, -1).expand(-1, x.shape[0]).contiguous()


def run(program, denoise, cursor, first=0, callback=None, trace=None):
    """Run model calls first .. nfe-1 of a program; the final cursor, whose point is the result.

    The callback is called after each model call with a Progress; an exception that it or the
    model raises ends the run at once. A list given as `trace` receives the cursors before and
    behind each call, from which a run can be taken up again.
    """
    sigmas = call_sigmas(program, cursor.point)
    for call in range(first, program.nfe):
        before = cursor
        cursor, x0 = evaluate(program, call, cursor, denoise, sigmas[call])
        if trace is not None:
            trace.append((before, cursor))
        if callback is not None:
            callback(Progress(call - first, program.nfe - first, sigmas[call], cursor.point, x0))
        cursor = advance(program, call, cursor)
    return cursor


def sample(denoise, x, table, cond=None, callback=None, *, start=0, keep=None):
    """Run `table` on noised x [batch, ...] and return the result, in x's shape and dtype.

    denoise(x, sigma) or, where `cond` is given, denoise(x, sigma, cond), with sigma [batch],
    returns x0. `start` begins at a later node (x noised to that node's sigma). `keep` is a pair
    (mask, original): where the mask is 0 the result is exactly the original (inpainting). A mask
    between 0 and 1 is the host's to blend, which it does inside its model calls.
    """
    dtype, work = x.dtype, torch.promote_types(x.dtype, torch.float32)

    def model(point, sigma):
        point = point.to(dtype)
        return denoise(point, sigma) if cond is None else denoise(point, sigma, cond)

    x = x.to(work)
    out = run(compiled(table, start), model, Cursor(x, x), callback=callback).point.to(dtype)
    if keep is not None:
        mask, original = (part.to(out) for part in keep)
        out = torch.where(mask == 0, original, out)
    return out
