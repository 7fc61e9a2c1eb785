"""What a browser has been shown, so that a look again sends only what has changed."""

from .compat import UNCHANGED


def changed(seen, place, signature, make=None):
    """What to show at `place`: nothing new if its signature is the one shown last.

    `seen` is a dict kept for each browser tab; `make()` gives the value, if it is not the
    signature itself.
    """
    if place in seen and seen[place] == signature:
        return UNCHANGED
    seen[place] = signature
    return make() if make else signature
