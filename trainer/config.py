"""Training configs: plain data with strict keys, read from and written to TOML. No torch."""

import importlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from s4s_core.app.folders import RESERVED
from s4s_core.checks import between, check_fields, fitting, line, one_of
from s4s_core.errors import ConfigError, ModelError, S4SError, pip_install_line, short
from s4s_core.names import (
    AUTO,
    DEFAULT_METHOD,
    EFFORTS,
    FREE,
    METHODS,
    effort_text,
    solver_parts,
    solver_steps,
)
from s4s_core.training.settings import Settings, upgraded

from . import toml
from .models import ModelChoice

NOT_OPTIONS = ("method", "nfes", "seed", "budget", "objective")
"""Settings that are fields of a config."""

OPTIONS: dict[str, Any] = {
    each.name: each.default for each in fields(Settings) if each.name not in NOT_OPTIONS
}
"""Keys of [options] with their defaults; docs/training.md explains them."""

MOST_NFE = 100
MOST_CALLS = 10**9
MOST_OPTION = 10**6
"""The largest number of any option."""

LARGEST_SEED = 2**32 - 1
"""The WebUIs' limit."""

LONGEST_NAME = 80
MOST_TEXT = 80_000
"""The most bytes of a config, because it is stored in the solver file's header."""
MOST_FILE, MOST_DOTS = 200_000, 500
"""The most characters of a config's file, and dots of keys and numbers in a line: Python's reader
takes gigabytes for a key of many parts."""
_TEXTS = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"{3,5}|\Z)|"(?:\\.|[^"\\\n])*"?|'
    r"'''.*?(?:'{3,5}|\Z)|'[^'\n]*'?|#[^\n]*",
    re.DOTALL,
)
"""TOML's texts and comments; one that does not end reaches as far as it could."""

TOML = "tomllib" if sys.version_info >= (3, 11) else "tomli"
NETWORK, DEVICES = ("//", "/??/", "/net/", "/afs/"), ("/dev/", "/proc/", "/sys/")
"""Where other machines and devices are."""

CONSENT = "Add --allow-code if you trust it, or name the model yourself on the command line."


@dataclass(frozen=True)
class TrainConfig:
    """A training job: the model, the step counts, and how hard to try.

    name: the solver's; "" uses the model's. nfes: a table is trained for each. effort: a key of
    EFFORTS: all model calls for the first NFE. budget: the same as a number; 0 uses the effort.
    Gradient methods train for their epochs, and a budget only limits them. teacher: "auto", or
    solver:order:schedule:calls such as unipc-bh2:3:logsnr:20. options: fields of Settings.
    """

    model: ModelChoice = field(default_factory=ModelChoice)
    name: Annotated[str, line(LONGEST_NAME)] = ""
    nfes: tuple[Annotated[int, between(1, MOST_NFE)], ...] = (5,)
    effort: Annotated[str, one_of("effort", EFFORTS)] = "normal"
    budget: Annotated[int, between(0, MOST_CALLS)] = 0
    method: str = DEFAULT_METHOD
    objective: str = AUTO
    teacher: str = "auto"
    seed: Annotated[int, between(0, LARGEST_SEED)] = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, ConfigError)
        if not self.nfes:
            raise ConfigError("Choose at least one step count.")
        object.__setattr__(self, "nfes", tuple(sorted(set(self.nfes))))
        options = sorted(upgraded(self.options).items())
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in options}
        object.__setattr__(self, "options", plain)
        self._check_options()
        if len(json.dumps(json.dumps(self.plain()))) > MOST_TEXT:  # JSON inside JSON, in ASCII
            raise ConfigError("The prompts are too long for a solver file. Use fewer.")
        try:
            self._check_runs()
        except S4SError as error:
            raise ConfigError(str(error)) from None

    def _check_options(self) -> None:
        hints = get_type_hints(Settings)
        for key, value in self.options.items():
            if key not in OPTIONS:
                known = ", ".join(OPTIONS)
                raise ConfigError(f"Unknown option '{short(key)}'. Choose one of {known}.")
            hint = hints[key]
            if hint in (int, float):
                hint = Annotated[hint, between(0, MOST_OPTION)]
            fitting(key, value, hint, ConfigError)

    def _check_runs(self) -> None:
        """Raise S4SError for anything that training would refuse later."""
        settings, parts = self.settings(), teacher_parts(self.teacher)
        if parts:
            solver, order, _ = solver_parts(parts[0])
            solver_steps(solver, order, parts[1], settings.ending)

    @property
    def title(self) -> str:
        """The name, or one made from the model's."""
        return self.name or f"{self.model.label} solver"

    @property
    def calls(self) -> int | None:
        """The budget that fit gets; None trains for the epochs."""
        if self.budget:
            return self.budget
        method = METHODS.get(self.method)
        return EFFORTS[self.effort] if method and method.default_budget else None

    def settings(self) -> Settings:
        """Return the Settings for fit."""
        known = {"method": self.method, "nfes": self.nfes, "seed": self.seed, "budget": self.calls}
        return Settings.of({**self.options, **known, "objective": self.objective})

    def plain(self) -> dict[str, Any]:
        """Return the config as JSON-able data, without an empty [options] section."""
        values = asdict(self)
        model, options = values.pop("model"), values.pop("options")
        model["prompts"], values["nfes"] = list(model["prompts"]), list(values["nfes"])
        return {**values, "model": model, **({"options": options} if options else {})}


def teacher_parts(text: str) -> tuple[str, int] | None:
    """Split solver:order:schedule:calls into (solver:order:schedule, calls); None for "auto"."""
    if text == "auto":
        return None
    match = re.fullmatch("(.+:.+:.+):([1-9][0-9]{0,2}|1000)", text)
    if match is None:
        raise ConfigError(
            f"Invalid teacher '{short(text)}'. Write auto, or solver:order:schedule:calls such as "
            "unipc-bh2:3:logsnr:20."
        )
    return match[1], int(match[2])


Section = TypeVar("Section", TrainConfig, ModelChoice)


def _section(kind: type[Section], values: object, label: str) -> Section:
    """Make a dataclass from values; raise ConfigError for unknown keys."""
    if not isinstance(values, dict):
        raise ConfigError(f"{label} must be a section of keys and values.")
    known = [each.name for each in fields(kind)]
    for key in values:
        if key not in known:
            raise ConfigError(
                f"Unknown key '{short(key)}' in {label}. It takes {', '.join(known)}."
            )
    try:
        return kind(**values)
    except ModelError as error:
        raise ConfigError(str(error)) from None


def from_plain(values: Mapping[str, Any]) -> TrainConfig:
    """Make a config from what `plain` returns; missing keys have their defaults."""
    model = _section(ModelChoice, values.get("model", {}), "[model]")
    return _section(TrainConfig, {**values, "model": model}, "the config")


def to_toml(config: TrainConfig) -> str:
    """Write a config as TOML."""
    return toml.dumps(config.plain())


def from_toml(text: str) -> TrainConfig:
    """Read a config from TOML; raise ConfigError if it is not valid."""
    if len(text) > MOST_FILE:
        raise ConfigError(f"A config has at most {MOST_FILE:,} characters.")
    if max(line.count(".") for line in _TEXTS.sub("", text).split("\n")) > MOST_DOTS:
        raise ConfigError(f"A line of a config has at most {MOST_DOTS} dots outside of texts.")
    try:
        values = importlib.import_module(TOML).loads(text.removeprefix("\ufeff"))
    except ModuleNotFoundError:
        raise ConfigError(
            f"To read configs, this Python needs {TOML}: {pip_install_line(TOML)}"
        ) from None
    except RecursionError:
        raise ConfigError("The config is nested too deeply.") from None
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise ConfigError(f"The config is not valid TOML: {short(str(error), 200)}.") from None
    return from_plain(values)


def read_config(path: str | os.PathLike[str]) -> TrainConfig:
    """Read a config file."""
    try:
        with open(path, encoding="utf-8") as file:
            return from_toml(file.read(MOST_FILE + 1))
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a null byte in the name
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"Could not read '{path}': {reason}.") from None


def check_shared(path: str | os.PathLike[str], model: ModelChoice) -> None:
    """Raise ConfigError if what a config file says of the model could run code: someone else may
    have written it.

    A Python model is code, and so is a ComfyUI of another folder. A network path makes Windows send
    the user's name and password hash to that machine.
    """
    if model.kind == "python" or model.host:
        found = "a model in Python" if model.kind == "python" else "ComfyUI's folder (host)"
        raise ConfigError(f"{path} names {found}, which is code. {CONSENT}")
    if is_remote_or_device(model.path):
        raise ConfigError(f"The model of {path} is on a network or a device. {CONSENT}")


def is_remote_or_device(text: str) -> bool:
    """Does a path name another machine or a device, on any system?

    One that stays in a working folder on a network does not.
    """
    path = text.replace("\\", "/")
    last = re.sub("^[A-Za-z]:", "", path.rstrip("/ ").rpartition("/")[2])
    if re.split("[.:]", last)[0].strip().lower() in RESERVED or _is_below(path, NETWORK + DEVICES):
        return True  # before it is looked up: Windows would log in there
    full, here = os.path.abspath(os.path.expanduser(path)), os.getcwd()
    roots = DEVICES + tuple(root for root in NETWORK if not _is_below(here, (root,)))
    return bool(path) and any(_is_below(each, roots) for each in (full, os.path.realpath(full)))


def _is_below(path: str, roots: tuple[str, ...]) -> bool:
    return (path.replace("\\", "/") + "/").startswith(roots)


def rooted(config: TrainConfig) -> TrainConfig:
    """Make a config independent of this process, for a job that runs in another one.

    The model's path and ComfyUI's folder (COMFYUI_PATH by default) become absolute.
    """
    model, tail = config.model, ""
    path, host = model.path, model.host
    if model.kind == "python":
        path, colon, name = path.rpartition(":")
        tail = colon + name
    if path and os.path.exists(path):
        model = replace(model, path=str(Path(path).absolute()) + tail)
    if model.kind == "comfyui":
        host = host or os.environ.get("COMFYUI_PATH", "")
    if host:
        model = replace(model, host=str(Path(os.path.expanduser(host)).absolute()))
    return replace(config, model=model)


@dataclass(frozen=True)
class Preset:
    """A description, and the fields of a TrainConfig that the preset sets."""

    help: str
    changes: dict[str, Any]


def _paper(help: str, method: str, pairs: int, validation: int) -> Preset:
    """Return a preset with the paper's settings (app:practical-implementation)."""
    changes = {
        "method": method,
        "objective": "lpips-alex",
        "teacher": "unipc-bh2:3:logsnr:20",
        "options": {
            "samples": pairs,
            "validation": validation,
            "epochs": 10,
            "consistent": FREE,
            "guidance": False,
        },
    }
    return Preset(help, changes)


PRESETS = {
    "quick": Preset(f"a first look: {effort_text('quick')}", {"effort": "quick"}),
    "normal": Preset(f"the usual choice: {effort_text('normal')}", {"effort": "normal"}),
    "thorough": Preset(f"a solver to share: {effort_text('thorough')}", {"effort": "thorough"}),
    "paper: S4S": _paper(
        "the paper's training of coefficients: 700 pairs, 10 epochs, LPIPS; takes hours",
        "s4s",
        700,
        200,
    ),
    "paper: S4S-Alt": _paper(
        "the paper's alternating training of times and coefficients: 1,400 pairs, 8 rounds, LPIPS; "
        "takes a day",
        "s4s-alt",
        1400,
        400,
    ),
}


def with_preset(config: TrainConfig, name: str) -> TrainConfig:
    """Apply a preset: the model, name, NFEs, strengths and seed stay, all else is the preset's."""
    if name not in PRESETS:
        raise ConfigError(f"Unknown preset '{short(name)}'. Choose one of {', '.join(PRESETS)}.")
    fresh = TrainConfig(model=config.model, name=config.name, nfes=config.nfes, seed=config.seed)
    preset = replace(fresh, **PRESETS[name].changes)
    kept = {key: value for key, value in config.options.items() if key == "strengths"}
    return replace(preset, options={**preset.options, **kept})
