"""The section "S4S" below the settings of txt2img and img2img: which solver file to use.

Solver files come from strangers: every text is escaped.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import gradio as gr
from modules import scripts
from modules.ui_components import ToolButton

from s4s_core.app.description import describe
from s4s_core.errors import S4SError
from s4s_core.hosting import mismatches
from s4s_core.table import SolverPack

from . import solver_choice
from .checkpoint import checkpoint, take_back
from .solver_choice import Processing

REFRESH = "\N{CLOCKWISE OPEN CIRCLE ARROW}"


def paragraph(text: str) -> str:
    """Return a text as an HTML paragraph."""
    return f"<p>{escape(text)}</p>"


def solver_html(name: str) -> str:
    """Describe a solver file in HTML, with what is wrong with it or with its use here.

    Below that stands what cannot be listed.
    """
    faults = solver_choice.faults().items()
    return _chosen_html(name) + "".join(paragraph(f"⚠ {entry}: {why}") for entry, why in faults)


def _chosen_html(name: str) -> str:
    if name == solver_choice.NONE:
        return paragraph("Sampler S4S needs a solver: choose one, or train one in the tab S4S.")
    try:
        pack = solver_choice.load_solver(name)
    except S4SError as error:
        return paragraph(str(error))
    return _pack_html(pack, mismatches(pack, **checkpoint()))


def _pack_html(pack: SolverPack, warnings: Sequence[str]) -> str:
    about = describe(pack)
    facts = {"Model": "unknown"} | about.facts()
    title = f"<p><b>{escape(about.title)}</b> ({about.sha256[:12]})</p>"
    text = "; ".join(f"{label}: {value}" for label, value in facts.items())
    return title + paragraph(f"{text}.") + "".join(paragraph(f"⚠ {text}") for text in warnings)


def refreshed(name: str) -> tuple[Any, str]:
    """Read the folders again; return an update of the list, and the description."""
    names = solver_choice.choices()
    name = name if name in names else solver_choice.NONE
    return gr.update(choices=names, value=name), solver_html(name)


class Section(scripts.Script):
    """Always visible; stores its choice in `solver_choice` and supports the paste button."""

    def title(self) -> str:
        return "S4S"

    def show(self, is_img2img: bool) -> Any:
        return scripts.AlwaysVisible

    def ui(self, is_img2img: bool) -> list[Any]:
        names = solver_choice.choices()
        first = names[min(1, len(names) - 1)]
        with gr.Accordion("S4S", open=False, elem_id=self.elem_id("section")):
            with gr.Row():
                solver: Any = gr.Dropdown(
                    label="Solver file",
                    choices=names,
                    value=first,
                    allow_custom_value=True,  # a picture may name a file that is not here (yet)
                    elem_id=self.elem_id("solver"),
                )
                refresh = ToolButton(REFRESH, elem_id=self.elem_id("refresh"))
            text = gr.HTML(solver_html(first), elem_id=self.elem_id("about"))
        solver.do_not_save_to_config = True  # the list depends on the folder, not on settings
        solver.change(solver_html, inputs=[solver], outputs=[text])
        refresh.click(refreshed, inputs=[solver], outputs=[solver, text])
        self.infotext_fields = [(solver, solver_choice.SOLVER)]
        self.paste_field_names = [solver_choice.SOLVER]
        return [solver]

    def before_process(self, p: Processing, solver: str | None = None) -> None:
        take_back()

    def process(self, p: Processing, *settings: str | None) -> None:
        """Choose the job's solver: none if the section's choice is empty.

        Jobs without our settings (some helpers) keep the last one.
        """
        named = solver_choice.axis_value(p)
        if named or settings:
            solver_choice.choose(named or settings[0] or solver_choice.NONE)
