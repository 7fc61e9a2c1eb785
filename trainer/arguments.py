"""Command-line options that several commands share, and checks that argparse does not make."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from s4s_core.errors import S4SError

if TYPE_CHECKING:
    from s4s_core import SolverPack

    from .config import TrainConfig
    from .models import ModelChoice

PICTURE = (".png",)
"""How the name of a picture ends: all that S4S writes are PNG."""


class Parser(Protocol):
    """What options are added to: an ArgumentParser or an argument group."""

    def add_argument(self, *names: str, **options: Any) -> Any: ...


def add_model_arguments(parser: Parser) -> None:
    """Add the options that choose a model; None keeps what the config or the model says."""
    from .models import DTYPES, MODELS

    add = parser.add_argument
    add("--model", metavar="KIND[:PATH]", help=f"{', '.join(MODELS)} (default: demo)")
    add("--prompt", action="append", help="a prompt; may be repeated (default: the model's)")
    add("--negative", help="the negative prompt")
    add("--cfg", type=float, help="guidance scale (default: the model's)")
    add("--width", type=int, help="in pixels (default: the model's)")
    add("--height", type=int, help="in pixels (default: the model's)")
    add("--device", help="a torch device such as cuda:1 or cpu (default: auto)")
    add("--dtype", choices=DTYPES, help="precision (default: auto)")
    add("--offload", action="store_true", default=None, help="keep most of the model off the GPU")
    add("--host", help="ComfyUI's folder, for models of kind comfyui")


def add_solver_arguments(parser: ArgumentParser, count: int, out: str) -> None:
    """Add the model options and those of commands that run a solver file."""
    add_model_arguments(parser)
    parser.add_argument("--solver", help="a solver file (default: the demo's)")
    parser.add_argument("--count", type=int, default=count, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--out", default=out, help="the file to write (default: %(default)s)")


def model_from_args(args: Namespace, model: "ModelChoice | None" = None) -> "ModelChoice":
    """Return `model` (the demo by default) with the options given on the command line."""
    from .models import ModelChoice

    model = model or ModelChoice()
    if args.model is not None:
        chosen = ModelChoice.parse(args.model)
        model = replace(model, kind=chosen.kind, path=chosen.path)
    if args.prompt:
        model = replace(model, prompts=tuple(filter(None, args.prompt)))
    keys = ("cfg", "width", "height", "negative", "device", "dtype", "offload", "host")
    return replace(model, **_given(args, keys))


def _given(args: Namespace, keys: Iterable[str]) -> dict[str, Any]:
    """Return those of the options that have a value."""
    return {key: getattr(args, key) for key in keys if getattr(args, key) is not None}


def check_draw(count: int, seed: int) -> None:
    """Raise S4SError unless `count` pictures can be drawn from `seed`."""
    if count < 1 or not 0 <= seed < 1 << 63:
        raise S4SError("--count must be >= 1 and --seed must be >= 0.")


def pack_from_args(args: Namespace, kind: str) -> "SolverPack":
    """Return the solver that is named, or the one that ships with a kind of models."""
    from s4s_core import load_solver

    from .models import bundled_solver

    return load_solver(bundled_solver(kind) if args.solver is None else args.solver)


def check_output(option: str, path: str, endings: Sequence[str], *inputs: str | None) -> None:
    """Raise S4SError unless a file can be written to `path`: checked before the work.

    Its name must have one of the endings, and it must be none of the files that the command reads.
    """
    target = Path(path)
    folder = target.absolute().parent
    if target.suffix.lower() not in endings:
        raise S4SError(f"{option} '{path}': the name must end in {' or '.join(endings)}.")
    if not os.path.isdir(folder):
        raise S4SError(f"{option} {path}: the folder {folder} does not exist.")
    try:
        os.lstat(target)
    except FileNotFoundError:
        return
    except OSError as error:  # for example a name that is too long
        raise S4SError(f"{option} {path}: {error.strerror}. Choose another name.") from None
    if os.path.exists(target) and not os.path.isfile(target):
        raise S4SError(f"{option} {path} is not a file. Choose another name.")
    check_no_input(option, path, *inputs)


def check_no_input(option: str, path: str | os.PathLike[str], *inputs: str | None) -> None:
    """Raise S4SError if an output is one of the files that the command reads."""
    for given in filter(None, inputs):
        with suppress(OSError, ValueError):  # one that is not there is overwritten by nobody
            if os.path.samefile(path, given):
                raise S4SError(f"{option} {path} would overwrite {given}. Choose another name.")


def parse_counts(option: str, text: str) -> list[int]:
    """Return the distinct positive integers of a list such as 4,5,6, sorted."""
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise S4SError(f"{option} must be a list of positive integers such as 4,5,6, not '{text}'.")
    return numbers


def parse_strengths(option: str, text: str) -> list[float]:
    """Return the numbers of a list such as 0.3,0.5,0.75."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise S4SError(
            f"{option} must be a list of numbers such as 0.3,0.5,0.75, not '{text}'."
        ) from None


def add_train_arguments(parser: Parser) -> None:
    """Add the options of a training run; None keeps what the config file or TrainConfig says."""
    from s4s_core.app.estimate import IMG2IMG_COST, IMG2IMG_STRENGTHS
    from s4s_core.names import (
        AUTO,
        DEFAULT_METHOD,
        EFFORTS,
        METHODS,
        OBJECTIVES,
        efforts_text,
    )

    from .config import PRESETS

    add = parser.add_argument
    add("--config", help="a TOML file to start from; the options below override it")
    add(
        "--allow-code",
        action="store_true",
        help="trust the TOML file: let it name Python code, ComfyUI's folder or a network path",
    )
    add("--preset", metavar="NAME", help=", ".join(f"'{name}'" for name in PRESETS))
    add_model_arguments(parser)
    add("--name", help="the solver's name (default: the model's)")
    add("--nfe", help="model calls, such as 5 or 4,5,6,8 (default: 5)")
    usual = ",".join(map(str, IMG2IMG_STRENGTHS))
    add(
        "--strengths",
        nargs="?",
        const=usual,
        metavar="LIST",
        help="train tables for image-to-image too, at these strengths (denoise) below 1; "
        f"{usual} if no list is given. {IMG2IMG_COST}",
    )
    add("--effort", choices=EFFORTS, help=f"all that is spent; {efforts_text()} (default: normal)")
    add("--budget", type=int, help="all model calls for the first NFE; overrides --effort")
    add("--method", choices=METHODS, help=f"default: {DEFAULT_METHOD}")
    add(
        "--objective",
        choices=[AUTO, *OBJECTIVES],
        help="default: auto (look for pictures and latents, l2 for other data)",
    )
    add("--teacher", help="auto (default) or solver:order:schedule:calls")
    add("--init", help="the solver to start from: auto (default) or solver:order:schedule")
    add("--seed", type=int, help="default: 0")


def _check_consent(args: Namespace, model: "ModelChoice") -> None:
    """Raise ConfigError if a config file names code that no option replaces."""
    from .config import check_shared
    from .models import ModelChoice

    if args.model is not None:
        model = ModelChoice(host=model.host)
    check_shared(args.config, model if args.host is None else replace(model, host=""))


def config_from_args(args: Namespace) -> "TrainConfig":
    """Return the TrainConfig that the options ask for."""
    from .config import TrainConfig, read_config, with_preset

    config = TrainConfig() if args.config is None else read_config(args.config)
    if args.config is not None and not args.allow_code:
        _check_consent(args, config.model)
    if args.preset is not None:
        config = with_preset(config, args.preset)
    keys = ("name", "effort", "budget", "method", "objective", "teacher", "seed")
    changes = _given(args, keys) | {"model": model_from_args(args, config.model)}
    if args.nfe is not None:
        changes["nfes"] = tuple(parse_counts("--nfe", args.nfe))
    options = _given(args, ("init",))
    if args.strengths is not None:
        options["strengths"] = parse_strengths("--strengths", args.strengths)
    return replace(config, **changes, options={**config.options, **options})
