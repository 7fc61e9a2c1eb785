"""`panel`: train, follow and compare solvers in a browser."""


def add_arguments(parser):
    parser.add_argument("--port", type=int, help="on this machine only; 0 takes any free port")
    parser.add_argument("--follow", type=int, metavar="PID", help="end when this process ends")
    parser.add_argument("--no-browser", action="store_true", help="open no browser window")


def run(args):
    from importlib.util import find_spec

    from s4s_core.errors import S4SError

    if find_spec("gradio") is None:
        raise S4SError(
            "The panel needs gradio: start it with 'python s4s.py', "
            "or run 'pip install -r requirements/panel.txt'."
        )
    from ..panel.server import serve

    serve(args.port, args.follow, not args.no_browser)
    return 0
