"""The tab "S4S": the trainer's panel, inside the host."""

import gradio as gr

from .checkpoint import free
from .wording import sentence


class WebUIHost:
    """This WebUI as the panel's host (a `trainer.panel.PanelHost`)."""

    def before_training(self) -> None:
        """Free the GPU for the process that trains."""
        free()


def _excuse(error):
    """A page that says why there is no panel and how to have it anyway."""
    with gr.Blocks() as page:
        gr.HTML(
            sentence(
                f"The trainer's panel cannot be shown here ({type(error).__name__}: {error}): "
                "start it from the extension's folder with 'python s4s.py panel'."
            )
        )
    return page


def page():
    """The panel, or one sentence: a fault of the panel must not keep the host from starting."""
    try:
        from trainer.panel import build

        return build(WebUIHost())
    except Exception as error:
        return _excuse(error)


def tabs():
    """What the host's `on_ui_tabs` wants: [(blocks, title, id)]."""
    return [(page(), "S4S", "s4s")]
