"""The tab Solvers: the files there are, what is inside, and how they come and go."""

from html import escape

import gradio as gr

from s4s_core.app.description import describe
from s4s_core.app.folders import find_solver, publish, solver_files, solver_folders
from s4s_core.errors import S4SError, SolverFileError
from s4s_core.solver_file import dump_solver, load_solver_bytes, load_unchanged, merge_packs
from s4s_core.table import SolverPack

from . import markup
from .compat import on
from .seen import changed
from .tables import table_charts

_NONE = "No solver files yet: train one, or add a file on the left."


class SolversTab:
    """Builds the tab; `outputs` are what `look` returns values for."""

    def __init__(self):
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                self.list = gr.Radio(
                    [],
                    label="Solver files",
                    info="What samplers in ComfyUI and the WebUIs can choose from.",
                    elem_id="s4s-solvers",
                    elem_classes="s4s-list",
                )
                self.delete = gr.Button("Delete", interactive=False, min_width=80)
                self.confirm = gr.Button("Yes, delete this file", variant="stop", visible=False)
                with gr.Accordion("Add a file", open=False):
                    gr.HTML(_upload_hint())
                    self.upload = gr.File(
                        type="binary", file_types=[".safetensors"], label="Solver file"
                    )
                with gr.Accordion("Merge files", open=False):
                    self.parts = gr.CheckboxGroup(
                        [],
                        label="Files to merge",
                        info="Solvers of one model and CFG with different steps become one file.",
                    )
                    self.name = gr.Textbox("", label="Name", info="Of the merged solver.")
                    self.merge = gr.Button("Merge")
            with gr.Column(scale=3):
                self.card = gr.HTML(markup.empty(_NONE))
                self.link = gr.HTML("")
                self.nfe = gr.Radio(
                    [], label="Table", info="Steps whose times and coefficients are drawn below."
                )
                self.plot = gr.HTML("")
        self.outputs = [self.list, self.parts, self.card, self.link, self.nfe, self.plot]
        self.outputs += [self.delete, self.confirm]

    def wire(self, look_again):
        """`look_again(event)` makes an event's end a look at everything."""
        on(self.delete.click, lambda: gr.update(visible=True), None, self.confirm, quiet=True)
        look_again(on(self.confirm.click, delete, self.list))
        look_again(on(self.upload.upload, add, self.upload, [self.upload, self.list]))
        look_again(on(self.merge.click, merge, [self.parts, self.name], self.list))


def _upload_hint():
    folder = escape(str(solver_folders()[0]))
    text = f"A .safetensors solver of at most 1 MB. It is checked, then kept in {folder}."
    return f'<div class="s4s-faint">{text}</div>'


def add(data):
    """Put an uploaded file among the solvers, if it is one; values for the upload and the list."""
    if not isinstance(data, bytes):
        raise SolverFileError("There is no file: choose one.")
    pack = load_solver_bytes(data, "This file")
    path = publish(data, pack.metadata.get("name") or "solver")
    return None, listing(path.name)


def delete(name):
    """Remove a listed file."""
    try:
        find_solver(name).unlink()
    except OSError as error:
        raise SolverFileError(f"{name} cannot be deleted: {error.strerror or error}.") from None


def merge(names, title):
    """One new file of the tables of several; a value for the list."""
    if len(names or ()) < 2:
        raise SolverFileError("Choose two or more files to merge.")
    pack = merge_packs([load_unchanged(find_solver(name)) for name in names])
    title = (title or "").strip()[:80]
    if title:
        pack = SolverPack(pack.tables, {**pack.metadata, "name": title})
    path = publish(dump_solver(pack), title or pack.metadata.get("name") or "merged")
    return listing(path.name)


def listing(name):
    """The list of files with `name` chosen."""
    return gr.update(choices=list(solver_files()), value=name)


def look(seen, chosen, nfe):
    """Values for SolversTab.outputs: what has changed since the last look."""
    names = list(solver_files())
    new = chosen if chosen in names else next(iter(names), None)
    moved = {} if new == chosen else {"value": new}
    shown = [
        changed(seen, "solvers", (tuple(names), new), lambda: gr.update(choices=names, **moved)),
        changed(seen, "parts", tuple(names), lambda: gr.update(choices=names)),
    ]
    last = [
        changed(seen, "drop", new is not None, lambda: gr.update(interactive=new is not None)),
        changed(seen, "sure", new, lambda: gr.update(visible=False)),
    ]
    return [*shown, *_details(seen, new, nfe), *last]


def _details(seen, name, nfe):
    if name is None:
        text, nfes, plot, stamp = markup.empty(_NONE), [], "", None
    else:
        try:
            path = find_solver(name)
            pack, stamp = load_unchanged(path), path.stat().st_mtime_ns
            text, nfes = (
                markup.solver_card(name, describe(pack).plain()),
                [str(n) for n in pack.nfes],
            )
            plot = markup.charts(table_charts(pack, int(nfe) if nfe in nfes else pack.nfes[0]))
        except (S4SError, OSError) as error:
            text, nfes, plot, stamp = markup.note(str(error), bad=True), [], "", None
    kept = {} if nfe in nfes else {"value": next(iter(nfes), None)}
    return [
        changed(seen, "solver", text),
        changed(seen, "link", stamp and (name, stamp), lambda: link(name) if stamp else ""),
        changed(seen, "nfes", tuple(nfes), lambda: gr.update(choices=nfes, **kept)),
        changed(seen, "plot", plot),
    ]


def link(name):
    """A link that saves the listed file."""
    path = find_solver(name)
    return markup.download(path.read_bytes(), path.name, f"Download {path.name}")
