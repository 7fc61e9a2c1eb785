"""Progress and warnings on the terminal."""

import sys
import time
from collections.abc import Iterable

from s4s_core.errors import visible


class ProgressLine:
    """Rewrites one line of stderr on a terminal; elsewhere prints a line now and then."""

    def __init__(self, width: int = 24, every: float = 10.0) -> None:
        self.stream, self.width, self.every = sys.stderr, width, every
        self.live, self.last = self.stream.isatty(), -every

    def show(self, share: float, text: str) -> None:
        """Show that `share` (0 to 1) is done, with a remark."""
        now = time.monotonic()
        if not self.live and now - self.last < self.every:
            return
        self.last = now
        filled = round(self.width * share)
        line = f"[{'#' * filled}{'.' * (self.width - filled)}] {share:4.0%}  {text}"
        self.stream.write(f"\r\x1b[K{line[:110]}" if self.live else line + "\n")
        self.stream.flush()

    def say(self, text: str) -> None:
        """Print a line that stays, in place of the progress."""
        self.close()
        self.stream.write(text + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Erase the line."""
        if self.live:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


def warn(warnings: Iterable[str]) -> None:
    """Print warnings to stderr; they may contain untrusted text."""
    for warning in warnings:
        print(f"warning: {visible(warning)}", file=sys.stderr)
