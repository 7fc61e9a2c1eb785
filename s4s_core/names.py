"""Names of everything that can be chosen, readable without torch, and where each one lives.

Adding a solver or a schedule is its own file, one line here, and its tests.
"""

import difflib
import importlib
import inspect

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
