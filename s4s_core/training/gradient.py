"""The paper's methods, by back-propagation: S4S, S4S-Alt, joint, and LD3 (algorithms 1 to 3).

Every method is a list of phases; a phase trains some of the student's leaves for some epochs.
The relaxed objective (eqn:prac-s4s-coeff-obj) lets each pair's noise x' move inside a ball of
radius r sigma_T by projected SGD; it stays with its pair, and validation uses the true noise.
Where the paper is silent the settings are LD3's.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ..candidates import Candidate
from ..errors import TableError, TrainingError, short
from ..model import BoundDenoiser, Condition, Model, takes_guidance
from ..objectives import distances
from ..spaces import as_float64
from ..table import SolverTable
from ..teacher import Pairs
from .check import explained, gradient_error
from .distributed import shared
from .method import Method, Start
from .settings import Settings
from .state import NfeState
from .student import Student
from .task import NotFinite, Task

EPOCHS = 10
ROUNDS = 8
BATCH = 20
EMA = 0.9
STALL = 3
DECAY = 0.8
MAX_FAILURES = 3
# Model calls that one training forward pass counts as: itself, its backward pass, which costs
# another because weights are frozen and only inputs have gradients, and a repeated forward pass.
PLAIN_COST, REMATERIALISED_COST = 2, 3

Phase = tuple[str, ...]
"""The leaves that a phase trains."""
Leaves = dict[str, torch.Tensor]


def epoch_calls(nfe: int, samples: int, validation: int, rematerialise: bool) -> int:
    """Return what an epoch counts as, in model calls."""
    cost = REMATERIALISED_COST if rematerialise else PLAIN_COST
    return nfe * (cost * samples + validation)


def _epoch(settings: Settings, nfe: int) -> int:
    sizes = settings.sizes
    return epoch_calls(nfe, sizes.train, sizes.validation, settings.rematerialise)


class GradientMethod(Method):
    """Trains the leaves of each phase in turn, from the best start."""

    def __init__(self, name: str, phases: list[Phase], recompute: bool = False) -> None:
        super().__init__(name)
        self.phases, self.recompute = phases, recompute

    def phases_of(self, family: str) -> list[Phase]:
        """Return the phases for a family: single-step methods have stage times as coefficients."""
        if family == "ss":
            return [tuple(dict.fromkeys([*names, "offsets"])) for names in self.phases]
        return self.phases

    def planned_calls(self, settings: Settings, nfe: int) -> int:
        """All epochs, with the validation before them."""
        epochs = len(self.phases) * settings.epochs
        return epochs * _epoch(settings, nfe) + nfe * settings.sizes.validation

    def least_calls(self, model: Model, start: Start, settings: Settings) -> int:
        """One epoch, with the validation before it."""
        nfe = start.table.nfe
        return _epoch(settings, nfe) + nfe * settings.sizes.validation

    def judged_results(self, nfe: int, calls: int) -> float:
        return calls / nfe

    def run(
        self, task: Task, starts: list[Start], settings: Settings, state: NfeState
    ) -> tuple[Start, SolverTable]:
        start = starts[0]
        learns = any("guidance" in phase for phase in self.phases)
        guided = learns and settings.guidance and takes_guidance(task.model)
        student = Student(
            task.model,
            start.table,
            settings.domain,
            settings.fixed,
            settings.consistent_steps(guided),
            self._recomputed(start, settings.follow),
            guided,
        )
        saved = state.method.setdefault("descent", {"seed": settings.seed})
        descent = Descent(
            task,
            student,
            self.phases_of(start.table.family),
            saved,
            rate=settings.rate,
            relax=settings.relax,
            epochs=settings.epochs,
            rematerialise=settings.rematerialise,
            autocast=settings.autocast,
        )
        task.keep_best(saved["validation"], descent.table(saved["best"]))
        descent.run()
        state.history = saved["history"]
        return start, descent.table(saved["best"])

    def _recomputed(self, start: Start, follow: str) -> tuple[str, int] | None:
        """Return the (solver, order) of coefficients that follow the times, or None."""
        if not self.recompute and not follow:
            return None
        if not isinstance(start, Candidate):
            option = self.name if self.recompute else "follow"
            raise TrainingError(
                f"{option} recomputes a classical solver: set init to a solver name, not a table."
            )
        if follow and follow != f"{start.solver}:{start.order}":
            raise TrainingError(
                f"Coefficients that start from {start.label} cannot follow {short(follow)}: set "
                f"init to a solver name such as {short(follow)}:edm."
            )
        return start.solver, start.order


S4S = GradientMethod("s4s", [("phi",)])
LD3 = GradientMethod("ld3", [("xi", "offsets")], recompute=True)
JOINT = GradientMethod("joint", [("phi", "xi", "offsets", "guidance")])
S4S_ALT = GradientMethod("s4s-alt", [("xi", "offsets"), ("phi", "guidance")] * ROUNDS)


def radius(model: Model, nfe: int, count: int) -> float:
    """Return r of the relaxed objective: proportional to m^(-5/2), as the paper says, and
    calibrated to equal LD3's 0.001 C H W / N^2 at the parameter count of LMS-3 at the same N."""
    size = math.prod(model.shape)
    reference = max(3 * (nfe - 1), 1)
    return float(0.001 * size / nfe**2 * (max(count, 1) / reference) ** -2.5)


def optimisers(
    student: Student, nfe: int, rate: float, latent: bool
) -> dict[str, torch.optim.Optimizer]:
    """Return one optimiser per leaf: Adam for coefficients and guidance, LD3's RMSprop and SGD for
    times."""
    phi, xi, offsets = (student.leaves[name] for name in ("phi", "xi", "offsets"))
    found: dict[str, torch.optim.Optimizer] = {
        "phi": torch.optim.Adam([phi], lr=rate, betas=(0.9, 0.99)),
        "xi": torch.optim.RMSprop([xi], lr=rate, momentum=0.9),
        "offsets": torch.optim.SGD([offsets], lr=(0.001 if latent else 0.1) / nfe),
    }
    if "guidance" in student.leaves:
        found["guidance"] = torch.optim.Adam(
            [student.leaves["guidance"]], lr=rate, betas=(0.9, 0.99)
        )
    return found


def _root_mean(errors: torch.Tensor) -> float:
    return float(errors.mean().sqrt())


class Descent:
    """One gradient run: leaves, optimisers, moved noise and bookkeeping, all in `state`."""

    def __init__(
        self,
        task: Task,
        student: Student,
        phases: list[Phase],
        state: dict[str, Any],
        *,
        rate: float = 0.005,
        relax: float = 1.0,
        epochs: int = EPOCHS,
        batch: int = BATCH,
        rematerialise: bool = True,
        autocast: bool = False,
    ) -> None:
        self.task, self.student, self.state = task, student, state
        self.phases = [tuple(n for n in phase if n in student.leaves) for phase in phases]
        self.epochs, self.batch, self.autocast = epochs, batch, autocast
        self.rematerialise = rematerialise
        self.moves_times = any("offsets" in phase for phase in self.phases)
        learned = {name for phase in self.phases for name in phase}
        count = sum(student.leaves[name].numel() for name in learned)
        self.radius = radius(task.model, task.nfe, count) * relax * float(task.model.sigma_max)
        latent = task.model.shape[0] != 3
        self.optimisers = optimisers(student, task.nfe, rate, latent)
        self.generator = torch.Generator().manual_seed(state.setdefault("seed", 0))
        if "epoch" in state:
            self._restore()
        else:
            self._begin()

    # Bookkeeping

    def _begin(self) -> None:
        leaves = self._copy(self.student.leaves)
        error = _root_mean(self.task.initial_errors(self.table(leaves)))
        self.state.update(
            epoch=0,
            phase=0,
            failures=0,
            stalls=0,
            best=leaves,
            average=leaves,
            validation=error,
            history=[[self.task.meter.calls, error]],
            starts=self.task.train.x.clone(),
        )
        self._store()

    def _copy(self, leaves: Leaves) -> Leaves:
        return {name: leaf.detach().clone() for name, leaf in leaves.items()}

    def _store(self) -> None:
        """Copy everything that changes into the state."""
        self.state["leaves"] = self._copy(self.student.leaves)
        self.state["rng"] = self.generator.get_state()
        self.state["optimisers"] = {
            name: {
                "lr": optimiser.param_groups[0]["lr"],
                "moments": dict(optimiser.state.get(self.student.leaves[name], {})),
            }
            for name, optimiser in self.optimisers.items()
        }

    def _restore(self) -> None:
        self._load_leaves(self.state["leaves"])
        self.state["starts"] = self.state["starts"].to(self.task.train.x)
        self.generator.set_state(self.state["rng"].to(torch.uint8))
        for name, saved in self.state["optimisers"].items():
            self.optimisers[name].param_groups[0]["lr"] = saved["lr"]
            moments = {
                k: v.clone() if isinstance(v, torch.Tensor) else v
                for k, v in saved["moments"].items()
            }
            if moments:
                self.optimisers[name].state[self.student.leaves[name]] = moments

    def _load_leaves(self, leaves: Leaves) -> None:
        with torch.no_grad():
            for name, leaf in self.student.leaves.items():
                leaf.copy_(leaves[name])

    def _scale_rates(self, factor: float) -> None:
        for optimiser in self.optimisers.values():
            optimiser.param_groups[0]["lr"] *= factor

    # Training

    def run(self) -> None:
        """Train until all phases are done or the budget is spent; state["best"] is the result."""
        state = self.state
        while state["phase"] < len(self.phases) and not self._has_to_end():
            try:
                loss = self._epoch(self.phases[state["phase"]])
                error = self._validate(state["average"])
            except (NotFinite, TableError):  # two nodes that became equal make no valid table
                self._roll_back()
                continue
            self._after_epoch(error)
            self._store()
            name = "+".join(self.phases[state["phase"] - (state["epoch"] == 0)])
            table = self.table(state["best"])
            self.task.report(
                name, state["epoch"] or self.epochs, self.epochs, loss, state["validation"], table
            )

    def _has_to_end(self) -> bool:
        """Would another epoch exceed the budget? A finished run is read back without pairs."""
        task = self.task
        calls = epoch_calls(task.nfe, len(task.train), len(task.validation), self.rematerialise)
        return not len(task.train) or task.exceeds_budget(calls)

    def _after_epoch(self, error: float) -> None:
        """Keep the best leaves, decay on a stall, and go to the next phase after the last epoch."""
        state = self.state
        if error < state["validation"]:
            state.update(best=self._copy(state["average"]), validation=error, stalls=0)
        else:
            state["stalls"] += 1
        state["history"].append([self.task.meter.calls, error])
        if state["stalls"] >= STALL:
            self._load_leaves(state["best"])
            state["average"] = self._copy(state["best"])
            self._scale_rates(DECAY)
            state["stalls"] = 0
        state["epoch"] += 1
        state["failures"] = 0
        if state["epoch"] == self.epochs:
            state.update(epoch=0, phase=state["phase"] + 1)
            self._load_leaves(state["best"])
            state["average"] = self._copy(state["best"])

    def _roll_back(self) -> None:
        """After an invalid loss or table, go back to the best leaves, at half the rate."""
        state = self.state
        if state["failures"] == MAX_FAILURES:
            step = f"epoch {state['epoch']} of phase {state['phase']}"
            raise self.task.diverged(step, self.table(state["best"]))
        state["failures"] += 1
        self._load_leaves(state["best"])
        state.update(average=self._copy(state["best"]), starts=self.task.train.x.clone())
        for optimiser in self.optimisers.values():
            optimiser.state.clear()
        self._scale_rates(0.5)

    def table(self, leaves: Leaves) -> SolverTable:
        """Return the table of given leaves."""
        return self.student.at(leaves, self.moves_times)

    def _validate(self, leaves: Leaves) -> float:
        errors = self.task.errors(self.table(leaves), self.task.validation)
        self.task.check_finite(errors)
        return _root_mean(errors)

    def _epoch(self, names: Phase) -> float:
        """Pass over the training pairs in a random order; return the mean loss."""
        order = torch.randperm(len(self.task.train), generator=self.generator)
        losses = [self._step(index, names) for index in torch.split(order, self.batch)]
        return sum(losses) / len(losses)

    def _step(self, index: torch.Tensor, names: Phase) -> float:
        """Make one optimiser step on the pairs at `index`; return their mean loss."""
        for optimiser in self.optimisers.values():
            optimiser.zero_grad(set_to_none=True)
        starts = self.state["starts"]
        batch = self.task.train[index]
        moved = Pairs(starts[index], batch.cond, batch.target)
        losses, pulls = self.task.batcher.map(moved, self._backward)
        self.task.check_finite(losses)
        grads = self._shared_gradients(names, len(index))
        self.task.check_finite(torch.cat([g.flatten() for g in grads]))
        if self.radius:
            self.task.check_finite(pulls)
        for name in names:
            torch.nn.utils.clip_grad_norm_([self.student.leaves[name]], 1.0)
            self.optimisers[name].step()
        if self.radius:
            starts[index] = self._pulled(starts[index], self.task.train.x[index], pulls)
        self._average()
        return float(losses.mean())

    def _shared_gradients(self, names: Iterable[str], count: int) -> list[torch.Tensor]:
        """Return the mean gradients over all processes, which are also left in the leaves."""
        grads = []
        for name in names:
            leaf = self.student.leaves[name]
            if leaf.grad is None:
                leaf.grad = torch.zeros_like(leaf)
            if shared(count):
                torch.distributed.all_reduce(leaf.grad)
            leaf.grad /= count
            if name == "offsets" and "xi" not in names:  # nodes do not move, nor do their calls
                leaf.grad[:: self.student.table.nfe_per_step] = 0
            grads.append(leaf.grad)
        return grads

    def _backward(self, part: Pairs) -> tuple[torch.Tensor, torch.Tensor]:
        """Return losses and d(loss)/d(noise) per sample; gradients add up in the leaves."""
        x, leaves = part.x.clone().requires_grad_(), list(self.student.leaves.values())
        with torch.enable_grad(), explained(gradient_error):
            result = self.student.result(self._denoiser(part.cond), x, self.moves_times)
            losses = distances(self.task.objective, result, part.target)
            found = torch.autograd.grad(losses.sum(), [*leaves, x], allow_unused=True)
        *grads, pull = found
        self.task.meter.calls += self.task.nfe * len(x)  # the meter has counted the forward passes
        for leaf, grad in zip(leaves, grads, strict=True):
            if grad is not None:
                leaf.grad = grad if leaf.grad is None else leaf.grad + grad
        return as_float64(losses.detach()), pull

    def _denoiser(self, cond: Condition | None) -> BoundDenoiser:
        """Return the model for training: rematerialised, and in mixed precision on CUDA if set."""

        def call(
            x: torch.Tensor, sigma: torch.Tensor, guidance: torch.Tensor | None
        ) -> torch.Tensor:
            if not self.autocast or x.device.type != "cuda":
                return self.task.meter(x, sigma, cond, guidance)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return self.task.meter(x, sigma, cond, guidance).to(x.dtype)

        if not self.rematerialise:
            return call
        return lambda x, sigma, guidance: checkpoint(call, x, sigma, guidance, use_reentrant=False)

    def _pulled(
        self, moved: torch.Tensor, noise: torch.Tensor, pulls: torch.Tensor
    ) -> torch.Tensor:
        """Move noise by SGD at LD3's rate (for unit noise), projected to the ball of r sigma_T."""
        sigma = float(self.task.model.sigma_max)
        moved = moved - 12 / self.task.nfe * sigma**2 * pulls
        gap = (moved - noise).flatten(1)
        norms: torch.Tensor = torch.norm(gap, dim=1)
        share = (self.radius / norms.clamp(min=1e-30)).clamp(max=1)
        return noise + (gap * share.unsqueeze(1).to(gap)).reshape(noise.shape)

    def _average(self) -> None:
        with torch.no_grad():
            self.state["average"] = {
                name: EMA * self.state["average"][name] + (1 - EMA) * leaf.detach()
                for name, leaf in self.student.leaves.items()
            }
