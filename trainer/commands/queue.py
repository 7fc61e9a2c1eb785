"""`queue`: work through the queued jobs, one at a time on each device, and end."""


def add_arguments(parser):
    pass


def run(args):
    from ..jobs import runner

    runner.run()
    return 0
