"""`panel`: train, follow and compare solvers in a browser."""

from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--port", type=int, help="local port; 0 picks a free one")
    parser.add_argument("--follow", type=int, metavar="PID", help="exit when this process exits")
    parser.add_argument(
        "--install",
        action="store_true",
        help="if this Python has no gradio, download it into a folder used only by the panel",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser window")


def run(args: Namespace) -> int:
    from ..panel.packages import provide_gradio

    provide_gradio(args.install)
    from ..panel.server import serve

    serve(args.port, args.follow, not args.no_browser)
    return 0
