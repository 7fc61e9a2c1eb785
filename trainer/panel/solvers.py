"""The tab Solvers: list, show, add, merge and delete solver files."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from s4s_core.app.description import describe
from s4s_core.app.folders import (
    Listing,
    find_solver,
    list_solvers,
    publish,
    showable,
    solver_files,
    solver_folders,
)
from s4s_core.errors import S4SError, SolverFileError
from s4s_core.solver_file import dump_solver, load_solver_bytes, load_unchanged, merge_packs

from . import markup
from .charts import table_charts
from .compat import Shown, changed, changed_choices, on
from .fields import text

_NONE = "No solver files yet. Train one, or add a file on the left."


class SolversTab:
    """The tab's components; `refresh` returns updates for `outputs`."""

    def __init__(self) -> None:
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                self._files()
            with gr.Column(scale=3):
                self.card = gr.HTML(markup.empty(_NONE))
                self.link = gr.HTML("")
                self.table = gr.Radio(
                    [],
                    label="Table",
                    info="Show its noise levels, guidance and coefficients.",
                )
                self.plot = gr.HTML("")
        self.outputs = [self.list, self.merged, self.card, self.link, self.table, self.plot]
        self.outputs += [self.delete, self.confirm]

    def _files(self) -> None:
        """Build the left column: the list, and what can be done with files."""
        self.list = gr.Radio(
            [],
            label="Solver files",
            info="Samplers in ComfyUI and the WebUIs offer these files.",
            elem_id="s4s-solvers",
            elem_classes="s4s-list",
        )
        self.delete = gr.Button("Delete", interactive=False, min_width=80)
        self.confirm = gr.Button("Yes, delete this file", variant="stop", visible=False)
        with gr.Accordion("Add a file", open=False):
            hint = "A .safetensors solver file of at most 1 MB. It is checked and saved in "
            gr.HTML(markup.hint(f"{hint}{showable(solver_folders()[0])}."))
            self.upload = gr.File(type="binary", file_types=[".safetensors"], label="Solver file")
        with gr.Accordion("Merge files", open=False):
            self.merged = gr.CheckboxGroup(
                [],
                label="Files to merge",
                info="Combines step counts of solvers for the same model and CFG in one file.",
            )
            self.name = gr.Textbox("", label="Name", info="Name of the merged solver.")
            self.merge = gr.Button("Merge")

    def listen(self, refresh_after: Callable[[Any], None]) -> None:
        """Connect the buttons; `refresh_after(event)` refreshes the page when an event is over."""
        on(self.delete.click, lambda: gr.update(visible=True), None, self.confirm, quiet=True)
        refresh_after(on(self.confirm.click, delete, self.list))
        outputs = [self.upload, self.list]
        refresh_after(on(self.upload.upload, add, self.upload, outputs, preprocess=True))
        refresh_after(on(self.merge.click, merge, [self.merged, self.name], self.list))


def add(data: Any) -> tuple[None, Any]:
    """Save an uploaded solver file; return updates of the upload and the list."""
    if not isinstance(data, bytes):
        raise SolverFileError("Choose a file to upload.")
    pack = load_solver_bytes(data, "This file")
    path = publish(data, pack.metadata.get("name") or "solver")
    return None, _select(path.name)


def delete(name: Any) -> None:
    """Delete a listed file."""
    try:
        find_solver(name).unlink()
    except OSError as error:
        raise SolverFileError(f"Could not delete {name}: {error.strerror or error}.") from None


def merge(names: Any, title: Any) -> Any:
    """Save the tables of several files as a new one; return the update of the list."""
    if not isinstance(names, list) or len(names) < 2:
        raise SolverFileError("Choose two or more files to merge.")
    pack = merge_packs([load_unchanged(find_solver(name)) for name in names])
    title = text({"name": title}, "name").strip()[:80]
    if title:
        pack = pack.described({**pack.metadata, "name": title})
    path = publish(dump_solver(pack), title or pack.metadata.get("name") or "merged")
    return _select(path.name)


def _select(name: str) -> Any:
    return gr.update(choices=list(solver_files()), value=name)


def refresh(shown: Shown, chosen: Any, table: Any) -> list[Any]:
    """Return updates for SolversTab.outputs."""
    found = list_solvers()
    names = list(found.files)
    new = chosen if chosen in names else next(iter(names), None)
    return [
        changed_choices(shown, "solvers", names, chosen, new),
        changed(shown, "merged", tuple(names), lambda: gr.update(choices=names)),
        *_details(shown, found, new, table),
        changed(shown, "delete solver", gr.update(interactive=new is not None)),
        changed(shown, "confirm solver", new, lambda: gr.update(visible=False)),
    ]


def _details(shown: Shown, found: Listing, name: str | None, table: Any) -> list[Any]:
    """Return updates for the chosen file, and below its card what cannot be listed."""
    card, titles, new, plot, modified = markup.empty(_NONE), dict[str, str](), None, "", None
    if name is not None:
        try:
            path = found.files[name]
            pack, changed_at = load_unchanged(path), path.stat().st_mtime_ns
        except (S4SError, OSError) as error:
            card = markup.note(str(error), bad=True)
        else:
            solver, modified = describe(pack), changed_at
            card, titles = markup.solver_card(name, solver), solver.titles
            new = table if table in list(titles) else next(iter(titles))
            plot = markup.charts(table_charts(pack.named[new]))
    choices = [(title, key) for key, title in titles.items()]
    faults = (markup.note(f"{entry}: {fault}", bad=True) for entry, fault in found.faults.items())
    return [
        changed(shown, "solver", card + "".join(faults)),
        changed(shown, "link", (name, modified), lambda: _link(name) if modified else ""),
        changed_choices(shown, "tables", choices, table, new),
        changed(shown, "plot", plot),
    ]


def _link(name: Any) -> str:
    """Return a link that saves a listed file; "" if it has just been deleted."""
    try:
        return download_link(name)
    except (S4SError, OSError):
        return ""


def download_link(name: Any) -> str:
    """Return a link that saves a listed file."""
    path = find_solver(name)
    return markup.download(path.read_bytes(), path.name, f"Download {path.name}")
