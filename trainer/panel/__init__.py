"""The panel: train, compare and manage solvers in a browser.

`build` makes the page under Gradio 3.41 to 6, for the panel's own server (`server.py`) or for a
WebUI's tab. The page holds no state: jobs, solver files and comparisons are folders on disk and are
read anew on every refresh, so reloading the page or restarting the panel loses nothing. Other
processes open the models; the page itself never imports torch.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import gradio as gr


class PanelHost(Protocol):
    """The program that shows the panel or has started it."""

    def before_training(self) -> None:
        """Free memory: another process is about to open a model."""


def build(host: PanelHost | None = None, run: str = "") -> "gr.Blocks":
    """Return the page. The panel's own server names its run, so that a page left open notices when
    another one answers."""
    from .page import build_page

    return build_page(host, run)
