"""The panel: train, follow, keep and compare solvers in a browser.

`build` makes the page under Gradio 3.41 to 6, for this package's own server (`server.py`) or for a
WebUI's tab. The page holds no state: jobs, solver files and comparisons are folders on disk, and
every look at them is fresh, so that a refresh or a restart loses nothing. Models are opened in
other processes only; the page itself never imports torch.
"""


def build(hooks=None):
    """The page as a gr.Blocks. `hooks`, if given, has `before_training()`, called before another
    process opens a model (a WebUI frees its memory there), and `host`, the host's name."""
    from .page import build_page

    return build_page(hooks)
