"""What a training job is asked to do, as plain data with strict keys, in TOML and out. No torch."""

import json
import os
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from s4s_core.errors import ConfigError, S4SError
from s4s_core.names import DEFAULT_METHOD, EFFORTS, METHODS, solver_parts, solver_steps
from s4s_core.training.settings import Settings, without_removed

from . import toml
from .models.choice import ModelChoice

NOT_OPTIONS = ("method", "nfes", "seed", "budget", "objective")
"""Settings that a config says itself."""

OPTIONS = {each.name: each.default for each in fields(Settings) if each.name not in NOT_OPTIONS}
"""What may stand under [options], with defaults: docs/training.md says what each one means."""

MOST_NFE = 100
LARGEST_SEED = 2**32 - 1
"""As in the WebUIs."""

LONGEST_NAME = 80
MOST_TEXT = 80_000
"""Bytes of a config in the header of its solver file, which is bounded."""


@dataclass(frozen=True)
class TrainConfig:
    """A job: the model, how many calls the solver may make, and how hard to try.

    name: of the solver; "" is the model's. nfes: one table is learned for each. effort: a key of
    EFFORTS, model calls per NFE; budget: the same as a number, 0 leaves it to the effort. For the
    gradient methods the epochs decide, and a budget only bounds them. teacher: "auto", or
    solver:order:schedule:calls such as unipc-bh2:3:logsnr:20. options: fields of fit's Settings.
    """

    model: ModelChoice = field(default_factory=ModelChoice)
    name: str = ""
    nfes: tuple = (5,)
    effort: str = "normal"
    budget: int = 0
    method: str = DEFAULT_METHOD
    objective: str = "l2"
    teacher: str = "auto"
    seed: int = 0
    options: dict = field(default_factory=dict)

    def __post_init__(self):
        self._check_types()
        object.__setattr__(self, "nfes", tuple(sorted(set(self.nfes))))
        object.__setattr__(self, "options", dict(sorted(without_removed(self.options).items())))
        if not self.nfes or not all(1 <= n <= MOST_NFE for n in self.nfes):
            raise ConfigError(f"nfes are whole numbers from 1 to {MOST_NFE}, such as [4, 5, 6, 8].")
        if self.effort not in EFFORTS:
            raise ConfigError(f"Unknown effort '{self.effort}': choose {', '.join(EFFORTS)}.")
        if self.budget < 0:
            raise ConfigError("The budget is a whole number, not below 0.")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ConfigError(f"The seed is a whole number from 0 to {LARGEST_SEED}.")
        if len(self.name) > LONGEST_NAME or not self.name.isprintable():
            raise ConfigError(f"A name is a line of at most {LONGEST_NAME} characters.")
        if len(json.dumps(json.dumps(self.plain()))) > MOST_TEXT:  # JSON inside JSON, in ASCII
            raise ConfigError("The prompts are too long for a solver file's header: use fewer.")
        self._check_text()
        self._check_options()
        try:
            self._check_runs()
        except S4SError as error:
            raise ConfigError(str(error)) from None

    def _check_types(self):
        if not isinstance(self.model, ModelChoice):
            raise ConfigError("The model of a config is a ModelChoice, [model] in its file.")
        for each in ("name", "effort", "method", "objective", "teacher"):
            if not isinstance(getattr(self, each), str):
                raise ConfigError(f"'{each}' is text, not {getattr(self, each)!r}.")
        for each in ("budget", "seed"):
            if type(getattr(self, each)) is not int:
                raise ConfigError(f"'{each}' is a whole number, not {getattr(self, each)!r}.")
        if not isinstance(self.nfes, list | tuple) or any(type(n) is not int for n in self.nfes):
            raise ConfigError(f"'nfes' is a list such as [4, 5, 6, 8], not {self.nfes!r}.")
        if not isinstance(self.options, dict):
            raise ConfigError("'options' is a section of its own: [options].")

    def _check_text(self):
        """Half characters, as in names of files that are no UTF-8, could not be saved."""
        try:
            json.dumps(self.plain(), ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ConfigError("The model's path or a prompt is no valid Unicode text.") from None

    def _check_options(self):
        for key, value in self.options.items():
            if key not in OPTIONS:
                raise ConfigError(f"There is no option '{key}': choose of {', '.join(OPTIONS)}.")
            wanted = type(OPTIONS[key])
            if type(value) is not wanted and not (wanted is float and type(value) is int):
                raise ConfigError(f"The option '{key}' is like {OPTIONS[key]!r}, not {value!r}.")

    def _check_runs(self):
        """S4SError for what training would refuse once the model is open."""
        settings, parts = self.settings(), teacher_parts(self.teacher)
        if parts:
            solver, order, _ = solver_parts(parts[0])
            solver_steps(solver, order, parts[1], settings.ending)

    @property
    def title(self):
        """The name, or one made from the model's."""
        return self.name or f"{self.model.label} solver"

    @property
    def calls(self):
        """The budget per NFE that fit gets; None leaves it to the epochs."""
        if self.budget:
            return self.budget
        method = METHODS.get(self.method)
        return EFFORTS[self.effort] if method and method.default_budget else None

    def settings(self):
        """The Settings that fit will make of this."""
        known = {"method": self.method, "nfes": self.nfes, "seed": self.seed, "budget": self.calls}
        return Settings.of({**self.options, **known, "objective": self.objective})

    def plain(self):
        """This as JSON: what the file says, every model key and no empty section included."""
        values = asdict(self)
        model, options = values.pop("model"), values.pop("options")
        model["prompts"], values["nfes"] = list(model["prompts"]), list(values["nfes"])
        return {**values, "model": model, **({"options": options} if options else {})}


def teacher_parts(text):
    """(start text, calls) of a teacher's solver:order:schedule:calls, or None for "auto"."""
    if text == "auto":
        return None
    start, _, calls = text.rpartition(":")
    if start.count(":") != 2 or not calls.isdecimal() or not 1 <= int(calls) <= 1000:
        raise ConfigError(
            f"The teacher '{text}' is not understood: write auto, or solver:order:schedule:calls "
            "such as unipc-bh2:3:logsnr:20."
        )
    return start, int(calls)


def _section(kind, values, what):
    """An instance of a dataclass; keys that it does not have are refused by name."""
    known = [each.name for each in fields(kind)]
    for key in values:
        if key not in known:
            raise ConfigError(f"{what} has no key '{key}': it takes {', '.join(known)}.")
    return kind(**values)


def from_plain(values):
    """The config of a mapping as `plain` gives it; missing keys have their defaults."""
    values = dict(values)
    model = values.pop("model", {})
    if not isinstance(model, dict):
        raise ConfigError("The model is a section of its own: [model].")
    return _section(
        TrainConfig, {**values, "model": _section(ModelChoice, model, "[model]")}, "A config"
    )


def to_toml(config):
    """The text of a config's file."""
    return toml.dumps(config.plain())


def from_toml(text):
    """The config of a file's text; ConfigError says what is wrong with it."""
    return from_plain(toml.loads(text))


def read_config(path):
    """The config in a file."""
    try:
        return from_toml(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None


def rooted(config):
    """The config with what it takes from this process made plain, for a job of another one: the
    model's path and ComfyUI's folder absolute, the latter from COMFYUI_PATH if it names none."""
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
