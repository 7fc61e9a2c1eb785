"""Starting this trainer as another process, under whatever name it is installed."""

from s4s_core.starting import command


def own_command(*arguments):
    """The command line of `python -m trainer ARGUMENTS`; the wheel calls it s4s_trainer."""
    return command(__package__, *arguments)
