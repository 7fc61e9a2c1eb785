"""What a picture says of the solver that made it, and how that comes back."""

from s4s_core.hosting import image_metadata

from . import choice

SOLVER, HASH, CALLS, HIRES_CALLS = "S4S solver", "S4S hash", "S4S NFE", "S4S hires NFE"


def write(p, pack, calls):
    """Add the solver's file, its hash and the model calls of this pass to the picture's text."""
    said = image_metadata(pack, calls)
    calls_of_pass = {HIRES_CALLS if p.is_hr_pass else CALLS: said["nfe"]}
    p.extra_generation_params.update({SOLVER: choice.chosen(), HASH: said["hash"], **calls_of_pass})
