"""What differs between Gradio 3.41, 4.40 and 6; the rest of the panel knows one Gradio only."""

import functools
import inspect
from html import escape

import gradio as gr

from s4s_core.errors import S4SError

MAJOR = int(gr.__version__.partition(".")[0])
_JS = "_js" if MAJOR < 4 else "js"

UNCHANGED = gr.update()
"""What an event returns for a component that it leaves alone."""


def _telling(function):
    """The same function; an S4SError becomes the sentence that the page shows."""

    @functools.wraps(function)
    def told(*arguments):
        try:
            return function(*arguments)
        except S4SError as error:
            raise gr.Error(escape(str(error), quote=False)) from None

    return told


def on(event, function=None, inputs=None, outputs=None, js=None, quiet=False):
    """Listen to an event of a component; returns what `.then` can be called on.

    `js` runs in the browser first. A quiet event is answered at once, past the queue, and shows no
    spinner: for whatever only reads a folder.
    """
    options = {"queue": not quiet, "show_progress": "hidden" if quiet else "full"}
    if js:
        options[_JS] = js
    return event(_telling(function) if function else None, inputs, outputs, **options)


def blocks(title):
    """The page's gr.Blocks; Gradio 6 takes the theme when it serves, see `mount`."""
    options = {} if MAJOR >= 6 else {"theme": theme()}
    return gr.Blocks(title=title, analytics_enabled=False, **options)


def theme():
    """Fonts of the machine only: a theme of Gradio's own asks a font server on the internet."""
    return gr.themes.Default(
        primary_hue="violet",
        secondary_hue="violet",
        neutral_hue="slate",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )


def mount(app, page, max_file_size):
    """Serve a page at the root of a FastAPI application, with all of Gradio's extras off.

    Gradio compares the paths that a browser names with its uploads only once a page counts as
    launched, which mounting alone does not make it.
    """
    page.queue(api_open=False)
    wanted = {
        "allowed_paths": [],
        "max_file_size": max_file_size,
        "show_error": True,
        "server_name": "127.0.0.1",
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "ssr_mode": False,
        "pwa": False,
        "mcp_server": False,
    }
    if MAJOR >= 6:
        wanted["theme"] = theme()
    known = inspect.signature(gr.mount_gradio_app).parameters
    options = {name: value for name, value in wanted.items() if name in known}
    mounted = gr.mount_gradio_app(app, page, path="/", **options)
    page.has_launched = True
    return mounted
