"""Names of everything that can be chosen, readable without torch, and where each one lives.

Adding a solver or a schedule is its own file, one line here, and its tests.
"""

import difflib
import importlib
import inspect

from .errors import TableError, TrainingError

SOLVERS = {
    "euler": "classical.multistep:euler",
    "ddim": "classical.multistep:euler",
    "ipndm": "classical.multistep:ipndm",
    "adams-bashforth": "classical.multistep:adams_bashforth",
    "dpm-solver": "classical.single_step:dpm_solver",
    "dpmpp": "classical.multistep:dpmpp",
    "exp-lagrange": "classical.multistep:exp_lagrange",
    "unipc-bh1": "classical.unipc:bh1",
    "unipc-bh2": "classical.unipc:bh2",
    "heun": "classical.single_step:heun",
    "gaussian": "classical.multistep:gaussian",
}

SCHEDULES = {
    "uniform": "schedules.closed:uniform",
    "quadratic": "schedules.closed:quadratic",
    "edm": "schedules.closed:edm",
    "logsnr": "schedules.closed:logsnr",
    "dmn": "schedules.dmn:dmn",
    "gits": "schedules.gits:gits",
    "ays": "schedules.ays:ays",
}

# Model calls per NFE that training may spend.
EFFORTS = {"quick": 6_000, "normal": 20_000, "thorough": 60_000}

OBJECTIVES = ("l2", "l1", "huber", "lpips-alex", "lpips-vgg", "lpips-squeeze")

# No sums of squares, which gauss-newton needs: for the methods by gradient.
GRADIENT_OBJECTIVES = ("l1", "huber")

# What the times of a solver may be given and learned in.
DOMAINS = ("sigma", "logsnr", "time")

METHODS = ("gauss-newton", "s4s", "s4s-alt", "joint", "ld3")


FORMS = {"ve": ("noise", "data"), "flow": ("velocity", "data", "noise")}
SPACES = tuple(FORMS)


def check_name(registry, kind, name, error):
    """Raise `error`, naming the valid ones, unless a name is registered."""
    if name not in registry:
        near = difflib.get_close_matches(str(name), registry, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise error(f"Unknown {kind} '{name}': choose one of {', '.join(registry)}.{hint}")


def resolve(registry, kind, name, error):
    """The function behind a registered name; `error` is raised if there is none."""
    check_name(registry, kind, name, error)
    module, function = registry[name].split(":")
    return getattr(importlib.import_module(f".{module}", __package__), function)


def check_options(function, kind, name, options, error):
    """Raise `error` for an option that `function` does not take, naming those it does."""
    known = [
        p.name for p in inspect.signature(function).parameters.values() if p.default is not p.empty
    ]
    for option in options:
        if option not in known:
            takes = ", ".join(known) if known else "none"
            raise error(f"The {kind} '{name}' has no option '{option}': it takes {takes}.")


def check_space(space):
    """Raise TableError unless `space` is known."""
    if space not in FORMS:
        raise TableError(f"Unknown space '{space}': choose one of {', '.join(SPACES)}.")


def check_form(form, space):
    """Raise TableError unless `form` exists in `space`."""
    check_space(space)
    if form not in FORMS[space]:
        raise TableError(
            f"The {space} space has no form '{form}': choose one of {', '.join(FORMS[space])}."
        )


def start_parts(text):
    """(solver, order, schedule) of a start such as "ipndm:3:edm"; TrainingError if it is none."""
    parts = text.split(":")
    if len(parts) != 3 or not parts[1].isdecimal() or not int(parts[1]):
        raise TrainingError(
            f"The start '{text}' is not understood: write 'auto' or solver:order:schedule, "
            "such as ipndm:3:edm."
        )
    check_name(SOLVERS, "solver", parts[0], TrainingError)
    check_name(SCHEDULES, "schedule", parts[2], TrainingError)
    return parts[0], int(parts[1]), parts[2]


def start_steps(solver, order, nfe, ending):
    """Steps in which a classical solver makes `nfe` calls; TrainingError if there are none."""
    if solver not in ("dpm-solver", "heun"):
        return nfe
    steps, rest = divmod(nfe + (solver == "heun" and ending == 0), order)
    if rest or not steps:
        raise TrainingError(f"{solver} of order {order} has no table of {nfe} calls.")
    return steps
