"""Gradio as the panel uses it: the differences between 3.41, 4.40 and 6, errors and updates."""

import functools
import hashlib
import inspect
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import gradio as gr

from s4s_core.checks import parse_json
from s4s_core.errors import S4SError

MAJOR = int(gr.__version__.partition(".")[0])
_JS = "_js" if MAJOR < 4 else "js"

_SILENT: dict[str, Any] = {"print_exception": False}
_QUIET = _SILENT if "print_exception" in inspect.signature(gr.Error).parameters else {}
"""A mistake of the user is no matter for the terminal, where Gradio can be told so."""

MOST_SESSIONS = 20
"""Pages whose components Gradio remembers, each with all choices; ours need none of it."""

UNCHANGED: Any = gr.update()
"""What an event returns for a component that stays the same."""

Shown = dict[str, str]
"""What a browser tab shows, by place: the digest of a value, or of a signature that changes when
the value does. The browser keeps it and gets it together with the values that it tells of, so it is
true in whatever order answers arrive."""


def parse_shown(text: object) -> Shown:
    """Return what a browser says that it shows; nothing if it is not what we sent."""
    try:
        values = parse_json(str(text).encode())
    except ValueError:
        values = None
    return values if isinstance(values, dict) else {}


def shows(shown: Shown, place: str, signature: Any) -> bool:
    """Does the browser show the value with this signature in a place?"""
    return shown.get(place) == _digest(signature)


def _digest(signature: Any) -> str:
    return hashlib.sha256(repr(signature).encode(errors="replace")).hexdigest()[:16]


def changed(shown: Shown, place: str, signature: Any, make: Callable[[], Any] | None = None) -> Any:
    """Return the value for a place, or UNCHANGED if the browser already shows it.

    `make()` returns the value; without it, the signature is the value.
    """
    if shows(shown, place, signature):
        return UNCHANGED
    shown[place] = _digest(signature)
    return make() if make else signature


def changed_choices(
    shown: Shown, place: str, choices: Sequence[Any], chosen: object, new: object
) -> Any:
    """Return the update of a list of choices; the choice moves only if `new` is not `chosen`."""
    moved: dict[str, Any] = {} if new == chosen else {"value": new}
    signature = (tuple(choices), new)
    return changed(shown, place, signature, lambda: gr.update(choices=list(choices), **moved))


def _show_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that the page shows the message of an S4SError."""

    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except S4SError as error:
            raise gr.Error(escape(str(error), quote=False), **_QUIET) from None

    return wrapper


def on(
    event: Callable[..., Any],
    function: Callable[..., Any] | None = None,
    inputs: Any = None,
    outputs: Any = None,
    js: str | None = None,
    quiet: bool = False,
    preprocess: bool = False,
) -> Any:
    """Listen to a component's event; the result has `.then`.

    `js` runs in the browser first. A quiet event skips the queue and shows no spinner: use it for
    functions that only read files. The function gets values as the browser sends them, of any type,
    and has to check them: Gradio's own check, which `preprocess` asks for, fails with all choices
    in its message if one has just been deleted. Only the contents of a file need it.
    """
    options: dict[str, Any] = {"queue": not quiet, "show_progress": "hidden" if quiet else "full"}
    options["preprocess"] = preprocess
    if js:
        options[_JS] = js
    return event(_show_errors(function) if function else None, inputs, outputs, **options)


def blocks(title: str) -> gr.Blocks:
    """Return an empty page; Gradio 6 takes the theme later, in `mount`."""
    options: dict[str, Any] = {} if MAJOR >= 6 else {"theme": theme()}
    return gr.Blocks(title=title, analytics_enabled=False, **options)


def theme() -> gr.themes.Default:
    """Return a theme that uses the system's fonts: Gradio's own themes download theirs."""
    return gr.themes.Default(
        primary_hue="violet",
        secondary_hue="violet",
        neutral_hue="slate",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    )


def mount(app: Any, page: gr.Blocks, max_file_size: int) -> Any:
    """Serve a page at the root of a FastAPI application, with all of Gradio's extras off.

    Gradio checks the paths of uploads only if the page counts as launched, and mounting a page does
    not mark it so.
    """
    page.queue(api_open=False)
    page.state_session_capacity = MOST_SESSIONS
    wanted: dict[str, Any] = {
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
    supported = inspect.signature(gr.mount_gradio_app).parameters
    options = {name: value for name, value in wanted.items() if name in supported}
    mounted = gr.mount_gradio_app(app, page, path="/", **options)
    page.has_launched = True
    return mounted
