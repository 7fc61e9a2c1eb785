"""Which forms of history exist in which space (see spaces), readable without torch."""

from .errors import TableError

FORMS = {"ve": ("noise", "data"), "flow": ("velocity", "data", "noise")}
SPACES = tuple(FORMS)


def check_space(space):
    """Raise TableError unless `space` is known."""
    if space not in FORMS:
        raise TableError(f"Unknown space '{space}': choose one of {', '.join(SPACES)}.")


def check_form(form, space):
    """Raise TableError unless `form` exists in `space`."""
    check_space(space)
    if form not in FORMS[space]:
        raise TableError(
            f"The {space} space has no form '{form}': choose one of {', '.join(FORMS[space])}."
        )
