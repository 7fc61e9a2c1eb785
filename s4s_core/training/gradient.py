"""The paper's methods, by back-propagation: S4S, S4S-Alt, joint, and LD3 (algorithms 1 to 3).

Every method is a list of phases; a phase trains some of the student's leaves for some epochs.
The relaxed objective (eqn:prac-s4s-coeff-obj) lets each pair's start x' move inside a ball of
radius r sigma_T by projected SGD; it stays with its pair, and validation uses the true noise.
Where the paper is silent the settings are LD3's.
"""

import math

import torch
from torch.utils.checkpoint import checkpoint

from ..errors import TableError
from ..spaces import as_float64
from .distributed import shared
from .task import NotFinite

EPOCHS = 10
ROUNDS = 8
BATCH = 20
EMA = 0.9
STALL = 3
DECAY = 0.8
MAX_FAILURES = 3
# Model calls that one training forward stands for: itself, its backward pass, which costs another
# where weights are frozen and only inputs have gradients, and a repeated forward.
PLAIN_COST, REMATERIALISED_COST = 2, 3

PHASES = {
    "s4s": [("phi",)],
    "ld3": [("xi", "offsets")],
    "joint": [("phi", "xi", "offsets")],
    "s4s-alt": [("xi", "offsets"), ("phi",)] * ROUNDS,
}


def phases(method, family):
    """What each phase learns. The stage times c of a single-step method are coefficients of its."""
    if family == "ss":
        return [tuple(dict.fromkeys([*names, "offsets"])) for names in PHASES[method]]
    return PHASES[method]


def radius(model, nfe, count):
    """r of the relaxed objective: proportional to m^(-5/2), as the paper says, and calibrated to
    equal LD3's 0.001 C H W / N^2 at the parameter count of an LMS-3 solver of the same N."""
    size = math.prod(model.shape)
    reference = max(3 * (nfe - 1), 1)
    return 0.001 * size / nfe**2 * (max(count, 1) / reference) ** -2.5


def optimisers(student, nfe, rate, latent):
    """One optimiser per leaf: Adam for coefficients, LD3's RMSprop and SGD for times."""
    phi, xi, offsets = (student.leaves[name] for name in ("phi", "xi", "offsets"))
    return {
        "phi": torch.optim.Adam([phi], lr=rate, betas=(0.9, 0.99)),
        "xi": torch.optim.RMSprop([xi], lr=rate, momentum=0.9),
        "offsets": torch.optim.SGD([offsets], lr=(0.001 if latent else 0.1) / nfe),
    }


def _root_mean(errors):
    return float(errors.mean().sqrt())


class Descent:
    """One gradient run: leaves, optimisers, moved starts and bookkeeping, all in `state`."""

    def __init__(
        self,
        task,
        student,
        method,
        state,
        *,
        rate=0.005,
        relax=1.0,
        epochs=EPOCHS,
        batch=BATCH,
        rematerialise=True,
        autocast=False,
    ):
        self.task, self.student, self.state = task, student, state
        self.epochs, self.batch, self.autocast = epochs, batch, autocast
        self.rematerialise = rematerialise
        self.phases = phases(method, student.table.family)
        self.moves_times = any("offsets" in phase for phase in self.phases)
        learned = {name for phase in self.phases for name in phase}
        count = sum(student.leaves[name].numel() for name in learned)
        self.radius = radius(task.model, task.nfe, count) * relax * float(task.model.sigma_max)
        latent = task.model.shape[0] != 3
        self.optimisers = optimisers(student, task.nfe, rate, latent)
        plan = len(self.phases) * self.epochs * self._epoch_cost()
        task.planned = plan if task.budget is None else min(plan, task.budget)
        self.generator = torch.Generator().manual_seed(state.setdefault("seed", 0))
        if "epoch" in state:
            self._restore()
        else:
            self._begin()

    # Bookkeeping

    def _begin(self):
        leaves = self._copy(self.student.leaves)
        error = _root_mean(self.task.initial_errors(self._table(leaves)))
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

    def _copy(self, leaves):
        return {name: leaf.detach().clone() for name, leaf in leaves.items()}

    def _store(self):
        """Put everything that changes into the state."""
        self.state["leaves"] = self._copy(self.student.leaves)
        self.state["rng"] = self.generator.get_state()
        self.state["optimisers"] = {
            name: {
                "lr": optimiser.param_groups[0]["lr"],
                "moments": dict(optimiser.state.get(self.student.leaves[name], {})),
            }
            for name, optimiser in self.optimisers.items()
        }

    def _restore(self):
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

    def _load_leaves(self, leaves):
        with torch.no_grad():
            for name, leaf in self.student.leaves.items():
                leaf.copy_(leaves[name])

    def _scale_rates(self, factor):
        for optimiser in self.optimisers.values():
            optimiser.param_groups[0]["lr"] *= factor

    # Training

    def run(self):
        """Train until all phases are done or the budget is spent; `state` has the best leaves."""
        state = self.state
        while state["phase"] < len(self.phases) and not self.task.spent_after(self._epoch_cost()):
            try:
                loss = self._epoch(self.phases[state["phase"]])
                error = self._validate(state["average"])
            except (NotFinite, TableError):  # a table of nodes that fell together is none
                self._roll_back()
                continue
            self._after_epoch(error)
            self._store()
            name = "+".join(self.phases[state["phase"] - (state["epoch"] == 0)])
            table = self._table(state["best"])
            self.task.report(
                name, state["epoch"] or self.epochs, self.epochs, loss, state["validation"], table
            )

    def _epoch_cost(self):
        cost = REMATERIALISED_COST if self.rematerialise else PLAIN_COST
        return self.task.nfe * (cost * len(self.task.train) + len(self.task.validation))

    def _after_epoch(self, error):
        """Keep the best, decay on a stall, go on to the next phase; `error` is the validation's."""
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

    def _roll_back(self):
        """After a loss or a table that is not valid: the best leaves again, at half the rate."""
        state = self.state
        if state["failures"] == MAX_FAILURES:
            step = f"epoch {state['epoch']} of phase {state['phase']}"
            raise self.task.diverged(step, self._table(state["best"]))
        state["failures"] += 1
        self._load_leaves(state["best"])
        state.update(average=self._copy(state["best"]), starts=self.task.train.x.clone())
        for optimiser in self.optimisers.values():
            optimiser.state.clear()
        self._scale_rates(0.5)

    def _table(self, leaves):
        return self.student.at(leaves, self.moves_times)

    def _validate(self, leaves):
        errors = self.task.errors(self._table(leaves), self.task.validation)
        self.task.check_finite(errors)
        return _root_mean(errors)

    def _epoch(self, names):
        """One pass over the training pairs in a random order; the mean loss."""
        order = torch.randperm(len(self.task.train), generator=self.generator)
        losses = [self._step(index, names) for index in order.split(self.batch)]
        return sum(losses) / len(losses)

    def _step(self, index, names):
        """One optimiser step on the pairs at `index`; micro-batches accumulate the gradient."""
        for optimiser in self.optimisers.values():
            optimiser.zero_grad(set_to_none=True)
        starts = self.state["starts"]
        batch = self.task.train[index]
        moved = type(batch)(starts[index], batch.cond, batch.target)
        losses, pulls = self.task.workers.map(moved, self._backward)
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

    def _shared_gradients(self, names, count):
        """Mean gradients, summed over all processes."""
        grads = []
        for name in names:
            leaf = self.student.leaves[name]
            if leaf.grad is None:
                leaf.grad = torch.zeros_like(leaf)
            if shared(count):
                torch.distributed.all_reduce(leaf.grad)
            leaf.grad /= count
            if name == "offsets" and "xi" not in names:  # nodes are held, so are their calls
                leaf.grad[:: self.student.table.nfe_per_step] = 0
            grads.append(leaf.grad)
        return grads

    def _backward(self, part):
        """Per-sample losses and d(loss)/d(start); gradients add up in the leaves, all or none."""
        x, leaves = part.x.clone().requires_grad_(), list(self.student.leaves.values())
        with torch.enable_grad():
            result = self.student.result(self._denoiser(part.cond), x, self.moves_times)
            losses = self.task.objective.distance(result, part.target)
            *grads, pull = torch.autograd.grad(losses.sum(), [*leaves, x], allow_unused=True)
        self.task.meter.calls += self.task.nfe * len(x)  # forwards have counted themselves
        for leaf, grad in zip(leaves, grads, strict=True):
            if grad is not None:
                leaf.grad = grad if leaf.grad is None else leaf.grad + grad
        return as_float64(losses.detach()), pull

    def _denoiser(self, cond):
        """The model for training: rematerialised, and in mixed precision on CUDA if asked for."""

        def call(x, sigma):
            if not self.autocast or x.device.type != "cuda":
                return self.task.meter(x, sigma, cond)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return self.task.meter(x, sigma, cond).to(x.dtype)

        if not self.rematerialise:
            return call
        return lambda x, sigma: checkpoint(call, x, sigma, use_reentrant=False)

    def _pulled(self, starts, noise, pulls):
        """Projected SGD on the starts at LD3's rate (for unit noise), in the ball of r sigma_T."""
        sigma = float(self.task.model.sigma_max)
        moved = starts - 12 / self.task.nfe * sigma**2 * pulls
        gap = (moved - noise).flatten(1)
        share = (self.radius / gap.norm(dim=1).clamp(min=1e-30)).clamp(max=1)
        return noise + (gap * share.unsqueeze(1).to(gap)).reshape(noise.shape)

    def _average(self):
        with torch.no_grad():
            self.state["average"] = {
                name: EMA * self.state["average"][name] + (1 - EMA) * leaf.detach()
                for name, leaf in self.student.leaves.items()
            }
