_hook = None


def set_progress_bar_global_hook(hook):
    global _hook
    _hook = hook


class ProgressBar:
    def __init__(self, total, node_id=None):
        self.total, self.current, self.node_id = total, 0, node_id

    def update_absolute(self, value, total=None, preview=None):
        self.current, self.total = value, total or self.total
        if _hook is not None:
            _hook(self.current, self.total, preview, node_id=self.node_id)

    def update(self, value):
        self.update_absolute(self.current + value)
