"""Checks of command-line values that argparse does not make."""

from s4s_core.errors import S4SError


def whole_numbers(option, text):
    """Sorted distinct positive whole numbers of a list such as 4,5,6."""
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise S4SError(f"{option} takes whole numbers such as 5 or 4,5,6,8, not '{text}'.")
    return numbers
