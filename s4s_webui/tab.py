"""The tab "S4S": the trainer's panel inside the host."""

from typing import Any

import gradio as gr

from .checkpoint import free
from .section import paragraph


class WebUIHost:
    """This WebUI as the panel's host (a `trainer.panel.PanelHost`)."""

    def before_training(self) -> None:
        """Free the GPU for the process that trains."""
        free()


def _error_page(error: Exception) -> gr.Blocks:
    """Return a page that says why there is no panel and how to open it anyway."""
    with gr.Blocks() as page:
        gr.HTML(
            paragraph(
                f"The trainer's panel cannot be shown here ({type(error).__name__}: {error}). "
                "Start it from the extension's folder with 'python s4s.py panel'."
            )
        )
    return page


def page() -> Any:
    """Return the panel, or an error page: a broken panel must not keep the host from starting."""
    try:
        from trainer.panel import build

        return build(WebUIHost())
    except Exception as error:
        return _error_page(error)


def tabs() -> list[tuple[Any, str, str]]:
    """Return what the host's `on_ui_tabs` wants: [(blocks, title, id)]."""
    return [(page(), "S4S", "s4s")]
