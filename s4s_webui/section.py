"""The section "S4S" below the settings of txt2img and img2img: which solver file to use."""

import gradio as gr
from modules import scripts
from modules.ui_components import ToolButton

from s4s_core.app.folders import find_solver
from s4s_core.errors import S4SError
from s4s_core.hosting import mismatches
from s4s_core.solver_file import load_unchanged

from . import axis, choice, infotext
from .checkpoint import checkpoint, take_back
from .wording import describe, sentence

REFRESH = "\N{CLOCKWISE OPEN CIRCLE ARROW}"


def about(name):
    """A solver file in a few lines of HTML, with what is wrong with it or with its use here."""
    if name == choice.NONE:
        return sentence("Sampler S4S needs a solver: choose one, or train one in the tab S4S.")
    try:
        pack = load_unchanged(find_solver(name))
    except S4SError as error:
        return sentence(str(error))
    return describe(pack, mismatches(pack, **checkpoint()))


def refreshed(name):
    """(the list, the text) after a new look into the folders; the choice stays if it can."""
    names = choice.choices()
    name = name if name in names else choice.NONE
    return gr.update(choices=names, value=name), about(name)


class Section(scripts.Script):
    """Always visible; leaves its choice in `choice`, and tells the paste button where to put it."""

    def title(self):
        return "S4S"

    def show(self, is_img2img):
        return scripts.AlwaysVisible

    def ui(self, is_img2img):
        names = choice.choices()
        first = names[min(1, len(names) - 1)]
        with gr.Accordion("S4S", open=False, elem_id=self.elem_id("section")):
            with gr.Row():
                solver = gr.Dropdown(
                    label="Solver file",
                    choices=names,
                    value=first,
                    allow_custom_value=True,  # a picture may name a file that is not here (yet)
                    elem_id=self.elem_id("solver"),
                )
                refresh = ToolButton(REFRESH, elem_id=self.elem_id("refresh"))
            text = gr.HTML(about(first), elem_id=self.elem_id("about"))
        solver.do_not_save_to_config = True  # the list is the folder's, not a setting
        solver.change(about, inputs=[solver], outputs=[text])
        refresh.click(refreshed, inputs=[solver], outputs=[solver, text])
        self.infotext_fields = [(solver, infotext.SOLVER)]
        self.paste_field_names = [infotext.SOLVER]
        return [solver]

    def before_process(self, p, solver=None):
        take_back()

    def process(self, p, solver=None):
        """A job that brings no settings of ours (some helpers start such) keeps the last choice."""
        name = getattr(p, axis.FIELD, None) or solver
        if name:
            choice.choose(name)
