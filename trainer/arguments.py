"""Options that several commands share, and checks that argparse does not make."""

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
