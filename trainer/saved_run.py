"""The saved run of the command `train`: kept beside the solver until that is saved."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from s4s_core.errors import SavedRunError, TrainingError
from s4s_core.regular import remove_tree
from s4s_core.training.distributed import is_first, wait_for_all
from s4s_core.training.plan import CallPlan
from s4s_core.training.state import RunState, exclusive, lock_path, pairs_folder

from .models import ModelChoice
from .models.contract import TrainerModel, file_digest, fingerprint

ELSEWHERE = ("device", "offload", "host")
"""What may change between a run and its continuation: where a model runs, not what it computes."""


def identify(model: TrainerModel, choice: ModelChoice) -> None:
    """Give a Python model without a fingerprint that of its file and its settings.

    So no other model goes on with its run.
    """
    if model.fingerprint is None:
        source = os.path.expanduser(choice.path.rpartition(":")[0])
        facts = {key: value for key, value in asdict(choice).items() if key not in ELSEWHERE}
        facts["prompts"] = list(choice.prompts)
        digest = file_digest(source) if os.path.isfile(source) else ""
        model.fingerprint = fingerprint(digest, facts)


class SavedRun:
    """The saved run of a solver file: in a folder beside it, or in a file that the user names.

    A path that the file system refuses is a TrainingError. Under torchrun every process calls these
    methods, and only the first one deletes anything.
    """

    def __init__(self, out: Path, state: str | os.PathLike[str] | None = None) -> None:
        self.folder = None if state else Path(f"{out}.run")
        self.path = Path(state or f"{out}.run/state.safetensors")
        try:
            os.lstat(self.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise TrainingError(
                f"The run cannot be kept in {self.path}: {error.strerror}. Choose a shorter name."
            ) from error

    def forget(self) -> None:
        """Delete what is saved; raise TrainingError if another process works on it, or if the file
        that the user named is no saved run."""
        if is_first() and self.path.parent.is_dir():
            if self.folder is None:
                self._check_named()
            with exclusive(self.path):
                self.path.unlink(missing_ok=True)
                remove_tree(pairs_folder(self.path))
        wait_for_all()

    def _check_named(self) -> None:
        try:
            RunState.read(self.path)
        except SavedRunError as error:
            raise TrainingError(
                f"{error.problem} So --fresh keeps it: delete it yourself, or choose another file."
            ) from None

    def share(self, plan: CallPlan) -> float | None:
        """Return the share of a run that is saved; None if nothing is."""
        state = RunState.read(self.path)
        return None if state is None else plan.saved_share(state)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the run beside the solver if it is interrupted, and refuse one that is not ours."""
        try:
            yield
        except SavedRunError as error:
            raise TrainingError(f"{error.problem} Add --fresh to begin anew.") from None
        finally:
            if not self.path.exists():
                self._remove_folder()

    def remove(self) -> None:
        """Remove the run from beside the solver, when no process needs it any more."""
        wait_for_all()
        self._remove_folder()

    def _remove_folder(self) -> None:
        """Remove what we keep beside the solver, and nothing else that lies there."""
        if is_first() and self.folder is not None:
            for ours in (self.path, lock_path(self.path), pairs_folder(self.path)):
                remove_tree(ours)
            with suppress(OSError):
                self.folder.rmdir()
