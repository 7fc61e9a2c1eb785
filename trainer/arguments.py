"""Checks of command-line values that argparse does not make."""

from pathlib import Path

from s4s_core.errors import S4SError


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
