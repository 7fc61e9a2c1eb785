"""A progress line on the terminal: share done, speed, and the time that is left."""

import sys
import time

from s4s_core.errors import visible


class ProgressLine:
    """Rewrites one line of stderr on a terminal; elsewhere prints a line now and then."""

    def __init__(self, width=24, every=10.0):
        self.stream, self.width, self.every = sys.stderr, width, every
        self.live, self.last = self.stream.isatty(), -every

    def show(self, share, text):
        """Show that `share` (0 to 1) is done, with a remark."""
        now = time.monotonic()
        if not self.live and now - self.last < self.every:
            return
        self.last = now
        filled = round(self.width * share)
        line = f"[{'#' * filled}{'.' * (self.width - filled)}] {share:4.0%}  {text}"
        self.stream.write(f"\r\x1b[K{line[:110]}" if self.live else line + "\n")
        self.stream.flush()

    def close(self):
        if self.live:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


def warn(sentences):
    """Print warnings where they spoil no output for programs; they may hold a stranger's text."""
    for sentence in sentences:
        print(f"warning: {visible(sentence)}", file=sys.stderr)
