"""What a solver says about itself, as plain data: nodes, sidebar, panel and commands show this.

Everything here comes from a file that anyone may have made: texts are bounded, numbers are numbers,
and whatever has an unexpected type is left out. Whoever shows a text must still escape it.
"""

import math

LONGEST_TEXT = 300


def _text(value):
    return value[:LONGEST_TEXT] if isinstance(value, str) else None


def _number(value):
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _flat(mapping):
    """The texts and numbers of an object, one level deep."""
    if not isinstance(mapping, dict):
        return {}
    found = {key[:60]: _text(v) if isinstance(v, str) else _number(v) for key, v in mapping.items()}
    return {key: value for key, value in list(found.items())[:30] if value is not None}


def ratio(scores):
    """Error of the solver as a share of the best classical one's, or None where it is unknown."""
    ours, theirs = _number(scores.get("rmse")), _number(scores.get("classical"))
    share = ours / theirs if ours is not None and theirs else math.inf
    return share if math.isfinite(share) else None


def summary(pack):
    """A pack for a list of solvers; JSON-able."""
    about = pack.metadata
    scores = {str(n): _flat(about.get("scores", {}).get(str(n))) for n in pack.nfes}
    return {
        "name": _text(about.get("name")),
        "notes": _text(about.get("notes")),
        "model": _flat(about.get("model")),
        "space": pack.space,
        "nfes": list(pack.nfes),
        "cfg": list(about["cfg"]) if "cfg" in about else None,
        "resolution": list(about["resolution"]) if "resolution" in about else None,
        "teacher": _flat(about.get("teacher")),
        "training": _flat(about.get("training")),
        "scores": scores,
        "ratios": {nfe: ratio(found) for nfe, found in scores.items()},
        "sha256": pack.digest,
        "thumbnail": about.get("thumbnail"),
    }


def table_facts(pack, nfe):
    """One table of a pack: what it is, its times and coefficients; JSON-able."""
    table = pack[nfe]
    facts = {key: getattr(table, key) for key in ("family", "order", "form", "space", "ending")}
    arrays = {name: array.tolist() for name, array in table.coefficients.items()}
    return facts | {
        "nfe": table.nfe,
        "sigmas": table.sigmas.tolist(),
        "call_sigmas": table.call_sigmas.tolist(),
        "coefficients": arrays,
    }
