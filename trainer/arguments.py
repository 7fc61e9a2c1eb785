"""Command-line options that several commands share, and checks that argparse does not make."""

from dataclasses import replace
from pathlib import Path

from s4s_core.errors import S4SError


def add_model_arguments(parser):
    """Options that say which model to use, and how; None leaves things as they are."""
    from .models.choice import DTYPES, MODELS

    add = parser.add_argument
    add("--model", metavar="KIND[:PATH]", help=f"{', '.join(MODELS)} (default: demo)")
    add("--prompt", action="append", help="a prompt; may be repeated (default: the model's)")
    add("--negative", help="the negative prompt")
    add("--cfg", type=float, help="guidance (default: the model's)")
    add("--width", type=int, help="in pixels (default: the model's)")
    add("--height", type=int, help="in pixels (default: the model's)")
    add("--device", help="such as cuda:1 or cpu (default: auto)")
    add("--dtype", choices=DTYPES, help="default: auto")
    add("--offload", action="store_true", default=None, help="keep most of the model off the GPU")
    add("--host", help="ComfyUI's folder, for the model kind comfyui")


def model_of(args, model=None):
    """The ModelChoice that the options ask for: those given change `model`."""
    from .models.choice import ModelChoice

    model = model or ModelChoice()
    if args.model:
        chosen = ModelChoice.parse(args.model)
        model = replace(model, kind=chosen.kind, path=chosen.path)
    if args.prompt:
        model = replace(model, prompts=tuple(filter(None, args.prompt)))
    keys = ("cfg", "width", "height", "negative", "device", "dtype", "offload", "host")
    return replace(model, **given(args, keys))


def given(args, keys):
    """The options among `keys` that have a value."""
    return {key: getattr(args, key) for key in keys if getattr(args, key) is not None}


def check_draw(count, seed):
    """S4SError unless so many pictures can be drawn from that seed."""
    if count < 1 or not 0 <= seed < 1 << 63:
        raise S4SError("--count takes whole numbers from 1 on, and --seed from 0 on.")


def check_folder(option, path):
    """S4SError unless the folder of a file that is to be written exists: asked before the work."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise S4SError(f"{option} {path}: the folder {folder} does not exist.")


def whole_numbers(option, text):
    """Sorted distinct positive whole numbers of a list such as 4,5,6."""
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise S4SError(f"{option} takes whole numbers such as 5 or 4,5,6,8, not '{text}'.")
    return numbers


def add_train_arguments(parser):
    """Options whose default None leaves things to the config file, or to TrainConfig."""
    from s4s_core.names import DEFAULT_METHOD, EFFORTS, METHODS, OBJECTIVES

    from .presets import PRESETS

    efforts = ", ".join(f"{name} {calls:,}" for name, calls in EFFORTS.items())
    add = parser.add_argument
    add("--config", help="a TOML file to start from; the options below change it")
    add("--preset", metavar="NAME", help=", ".join(f"'{name}'" for name in PRESETS))
    add_model_arguments(parser)
    add("--name", help="what to call the solver (default: after the model)")
    add("--nfe", help="model calls, such as 5 or 4,5,6,8 (default: 5)")
    add("--effort", choices=EFFORTS, help=f"calls per NFE: {efforts} (default: normal)")
    add("--budget", type=int, help="model calls per NFE, instead of an effort")
    add("--method", choices=METHODS, help=f"default: {DEFAULT_METHOD}")
    add("--objective", choices=OBJECTIVES, help="default: l2")
    add("--teacher", help="auto (default), or solver:order:schedule:calls")
    add("--init", help="where to start: auto (default), or solver:order:schedule")
    add("--seed", type=int, help="default: 0")


def config_of(args):
    """The TrainConfig that the options ask for."""
    from .config import TrainConfig, read_config
    from .presets import with_preset

    config = read_config(args.config) if args.config else TrainConfig()
    if args.preset:
        config = with_preset(config, args.preset)
    keys = ("name", "effort", "budget", "method", "objective", "teacher", "seed")
    changes = given(args, keys) | {"model": model_of(args, config.model)}
    if args.nfe:
        changes["nfes"] = tuple(whole_numbers("--nfe", args.nfe))
    if args.init:
        changes["options"] = {**config.options, "init": args.init}
    return replace(config, **changes)
