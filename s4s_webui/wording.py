"""A solver in a few lines of HTML. Files come from strangers: every text is escaped."""

from html import escape

from s4s_core.app import description


def sentence(text):
    """One paragraph."""
    return f"<p>{escape(text)}</p>"


def _range(values):
    """ "7", or "5 to 9"; resolutions are joined by their caller."""
    return " to ".join(dict.fromkeys(f"{value:g}" for value in values))


def _facts(said):
    """(what, how much) of all that the solver tells."""
    yield "Model", said["model"].get("name") or "unknown"
    yield "Steps", ", ".join(map(str, said["nfes"]))
    if said["cfg"]:
        yield "CFG", _range(said["cfg"])
    if said["resolution"]:
        yield "Size", "x".join(f"{side:g}" for side in said["resolution"])
    ratios = {nfe: ratio for nfe, ratio in said["ratios"].items() if ratio is not None}
    if ratios:
        shares = ", ".join(f"{ratio:.2f} at {nfe}" for nfe, ratio in ratios.items())
        yield "Error against the best classical solver", shares


def describe(pack, warnings=()):
    """What a pack is for, then what speaks against its use here."""
    said = description.describe(pack).plain()
    facts = "; ".join(f"{escape(what)}: {escape(str(text))}" for what, text in _facts(said))
    title = f"<p><b>{escape(said['name'] or 'Unnamed solver')}</b> ({said['sha256'][:12]})</p>"
    return title + f"<p>{facts}.</p>" + "".join(f"<p>⚠ {escape(each)}</p>" for each in warnings)
