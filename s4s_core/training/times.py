"""The paper's parametrisation of times (app:time-param-sec), in a chosen time domain.

Nodes come from a vector xi [steps + 1] by cumulative softmax and linear rescaling. Each call sits
at its step's node, or for later stages of single-step methods at a fixed share of the step, plus
an offset of its own that is clipped to a part of the smallest gap, or to what the table begins with
where that is more, and to the range. Both ends are fixed: the first node and call, and the last
node, which is the ending (spaced, like a schedule, as for sigma_min where that is 0).
"""

import torch

from ..errors import TrainingError
from ..names import DOMAINS, check_name
from ..schedules.closed import finite
from ..spaces import log_snr, sigma_of_log_snr

CLIP_SHARE = 0.5


class Times:
    """The times of one table as functions of (xi, offsets), differentiable in both.

    At xi = `initial` and offsets = `offsets` they are the table's own, up to rounding.
    """

    def __init__(self, model, table, domain="logsnr"):
        check_name(DOMAINS, "time domain", domain, TrainingError)
        if domain == "time" and getattr(model, "times", None) is None:
            raise TrainingError("This model has no discrete times: use the domain logsnr or sigma.")
        self.model, self.domain, self.ending = model, domain, table.ending
        self.stride = table.nfe_per_step
        self.first = torch.tensor(table.sigmas[:1]), torch.tensor(table.call_sigmas[:1])
        self.owner = torch.arange(table.nfe) // self.stride
        ends = finite(model.space, float(table.sigmas[0])), self._low()
        self.top, self.low = (self.to_time(end) for end in ends)
        time = self._with_ends(torch.tensor(table.sigmas[1:-1]))
        self.initial = torch.cat([-time.diff(), -time.diff().mean().reshape(1)]).log()
        width = (time[1:] - time[:-1])[self.owner]
        calls, nodes = torch.tensor(table.call_sigmas), torch.tensor(table.sigmas)[self.owner]
        gap, none = self.to_time(calls) - time[self.owner], torch.zeros_like(calls)
        later = torch.arange(table.nfe) % self.stride != 0
        self.shares = torch.where(later, gap / width, none)
        self.offsets = torch.where(later | (calls == nodes), none, gap)
        self.offsets[0] = 0
        within = calls.clamp(min=float(model.sigma_min))
        self.lowest = torch.minimum(self.low, self.to_time(within).min())

    def _low(self):
        return torch.tensor(self.ending or float(self.model.sigma_min), dtype=torch.float64)

    def _with_ends(self, inner):
        return torch.cat([self.top.reshape(1), self.to_time(inner), self.low.reshape(1)])

    def to_time(self, sigma):
        """Time in the domain, increasing in sigma."""
        if self.domain == "sigma":
            return sigma
        if self.domain == "logsnr":
            return -log_snr(self.model.space, sigma)
        return self.model.times.time(sigma)

    def to_sigma(self, time):
        """Inverse of `to_time`."""
        if self.domain == "sigma":
            return time
        if self.domain == "logsnr":
            return sigma_of_log_snr(self.model.space, -time)
        return self.model.times.sigma(time)

    def arrays(self, xi, offsets):
        """(nodes [steps + 1], calls [nfe]) as sigmas."""
        tau = xi.softmax(0).flip(0).cumsum(0).flip(0)
        time = (tau - tau[-1]) / (tau[0] - tau[-1]) * (self.top - self.low) + self.low
        bound = CLIP_SHARE / self.stride * (time[:-1] - time[1:]).min().item()
        calls = time[self.owner] + self.shares * (time[1:] - time[:-1])[self.owner]
        bound = self.offsets[1:].abs().clamp(min=bound)
        calls = (calls[1:] + offsets[1:].clamp(-bound, bound)).clamp(self.lowest, self.top)
        last = torch.tensor([self.ending], dtype=torch.float64)
        nodes = torch.cat([self.first[0], self.to_sigma(time[1:-1]), last])
        return nodes, torch.cat([self.first[1], self.to_sigma(calls)])
