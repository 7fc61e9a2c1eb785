"""Training configs: plain data with strict keys, read from and written to TOML. No torch."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from s4s_core.errors import ConfigError, S4SError
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
LARGEST_SEED = 2**32 - 1
"""The WebUIs' limit."""

LONGEST_NAME = 80
MOST_TEXT = 80_000
"""The most bytes of a config, because it is stored in the solver file's header."""


@dataclass(frozen=True)
class TrainConfig:
    """A training job: the model, the step counts, and how hard to try.

    name: the solver's; "" uses the model's. nfes: a table is trained for each. effort: a key of
    EFFORTS: all model calls for the first NFE. budget: the same as a number; 0 uses the effort.
    Gradient methods train for their epochs, and a budget only limits them. teacher: "auto", or
    solver:order:schedule:calls such as unipc-bh2:3:logsnr:20. options: fields of Settings.
    """

    model: ModelChoice = field(default_factory=ModelChoice)
    name: str = ""
    nfes: tuple[int, ...] = (5,)
    effort: str = "normal"
    budget: int = 0
    method: str = DEFAULT_METHOD
    objective: str = AUTO
    teacher: str = "auto"
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "nfes", tuple(sorted(set(self.nfes))))
        object.__setattr__(self, "options", dict(sorted(upgraded(self.options).items())))
        self._check_values()
        self._check_text()
        self._check_options()
        try:
            self._check_runs()
        except S4SError as error:
            raise ConfigError(str(error)) from None

    def _check_types(self) -> None:
        if not isinstance(self.model, ModelChoice):
            raise ConfigError("model must be a section: [model].")
        for name in ("name", "effort", "method", "objective", "teacher"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} must be text, not {getattr(self, name)!r}.")
        for name in ("budget", "seed"):
            if type(getattr(self, name)) is not int:
                raise ConfigError(f"{name} must be a whole number, not {getattr(self, name)!r}.")
        if not isinstance(self.nfes, list | tuple) or any(type(n) is not int for n in self.nfes):
            raise ConfigError(f"nfes must be a list such as [4, 5, 6, 8], not {self.nfes!r}.")
        if not isinstance(self.options, dict):
            raise ConfigError("options must be a section: [options].")

    def _check_values(self) -> None:
        if not self.nfes:
            raise ConfigError("Choose at least one step count.")
        if not all(1 <= n <= MOST_NFE for n in self.nfes):
            raise ConfigError(f"Step counts (nfes) must be between 1 and {MOST_NFE}.")
        if self.effort not in EFFORTS:
            raise ConfigError(f"Unknown effort '{self.effort}'. Choose {', '.join(EFFORTS)}.")
        if self.budget < 0:
            raise ConfigError("budget must be >= 0.")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ConfigError(f"seed must be between 0 and {LARGEST_SEED}.")
        if len(self.name) > LONGEST_NAME or not self.name.isprintable():
            raise ConfigError(f"name must be one line of at most {LONGEST_NAME} characters.")
        if len(json.dumps(json.dumps(self.plain()))) > MOST_TEXT:  # JSON inside JSON, in ASCII
            raise ConfigError("The prompts are too long for a solver file. Use fewer.")

    def _check_text(self) -> None:
        """Raise ConfigError for lone surrogates, as in file names that are not UTF-8."""
        try:
            json.dumps(self.plain(), ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ConfigError("The model's path or a prompt is not valid Unicode.") from None

    def _check_options(self) -> None:
        for key, value in self.options.items():
            if key not in OPTIONS:
                raise ConfigError(f"Unknown option '{key}'. Choose one of {', '.join(OPTIONS)}.")
            expected = type(OPTIONS[key])
            if type(value) is not expected and not (expected is float and type(value) is int):
                raise ConfigError(
                    f"The option '{key}' must be a value such as {OPTIONS[key]!r}, not {value!r}."
                )

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
    start, _, calls = text.rpartition(":")
    if start.count(":") != 2 or not calls.isdecimal() or not 1 <= int(calls) <= 1000:
        raise ConfigError(
            f"Invalid teacher '{text}'. Write auto, or solver:order:schedule:calls such as "
            "unipc-bh2:3:logsnr:20."
        )
    return start, int(calls)


Section = TypeVar("Section", TrainConfig, ModelChoice)


def _section(kind: type[Section], values: Mapping[str, Any], label: str) -> Section:
    """Make a dataclass from values; raise ConfigError for unknown keys."""
    known = [each.name for each in fields(kind)]
    for key in values:
        if key not in known:
            raise ConfigError(f"Unknown key '{key}' in {label}. It takes {', '.join(known)}.")
    return kind(**values)


def from_plain(values: Mapping[str, Any]) -> TrainConfig:
    """Make a config from what `plain` returns; missing keys have their defaults."""
    values = dict(values)
    model = values.pop("model", {})
    if not isinstance(model, dict):
        raise ConfigError("model must be a section: [model].")
    values["model"] = _section(ModelChoice, model, "[model]")
    return _section(TrainConfig, values, "the config")


def to_toml(config: TrainConfig) -> str:
    """Write a config as TOML."""
    return toml.dumps(config.plain())


def from_toml(text: str) -> TrainConfig:
    """Read a config from TOML; raise ConfigError if it is not valid."""
    return from_plain(toml.loads(text))


def read_config(path: str | os.PathLike[str]) -> TrainConfig:
    """Read a config file."""
    try:
        return from_toml(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Could not read {path}: {error}.") from None


def rooted(config: TrainConfig) -> TrainConfig:
    """Make a config independent of this process, for a job that runs in another one.

    The model's path and ComfyUI's folder (COMFYUI_PATH by default) become absolute.
    """
    model, tail = config.model, ""
    path, host = model.path, model.host
    if model.kind == "python":
        path, colon, name = path.rpartition(":")
        tail = colon + name
    if path and Path(path).exists():
        model = replace(model, path=str(Path(path).absolute()) + tail)
    if model.kind == "comfyui":
        host = host or os.environ.get("COMFYUI_PATH", "")
    if host:
        model = replace(model, host=str(Path(host).expanduser().absolute()))
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
    """Apply a preset: the model, name, NFEs and seed stay, everything else is the preset's."""
    if name not in PRESETS:
        raise ConfigError(f"Unknown preset '{name}'. Choose one of {', '.join(PRESETS)}.")
    fresh = TrainConfig(model=config.model, name=config.name, nfes=config.nfes, seed=config.seed)
    return replace(fresh, **PRESETS[name].changes)
