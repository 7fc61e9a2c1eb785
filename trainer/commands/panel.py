"""`panel`: train, follow and compare solvers in a browser."""


def add_arguments(parser):
    parser.add_argument("--port", type=int, help="on this machine only; 0 takes any free port")
    parser.add_argument("--follow", type=int, metavar="PID", help="end when this process ends")
    parser.add_argument(
        "--install",
        action="store_true",
        help="where this Python has no gradio, download it into a folder that only the panel uses",
    )
    parser.add_argument("--no-browser", action="store_true", help="open no browser window")


def run(args):
    from ..panel.packages import provide_gradio

    provide_gradio(args.install)
    from ..panel.server import serve

    serve(args.port, args.follow, not args.no_browser)
    return 0
