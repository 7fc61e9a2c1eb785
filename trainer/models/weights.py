"""Content hashes of weights: SHA-256 over every byte, read in pieces."""

import hashlib
from pathlib import Path

from s4s_core.errors import ModelError

_PIECE = 1 << 22
_PATTERNS = ("model_index.json", "*/*.json", "*/*.safetensors")


def file_digest(path):
    """SHA-256 of a file, in hex: what model sites and the WebUIs call the checkpoint's hash."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError as error:
        raise ModelError(f"The file {path} cannot be read: {error.strerror}.") from error
    return digest.hexdigest()


def folder_digest(folder):
    """SHA-256, in hex, over the names and hashes of a pipeline's weights and configurations."""
    folder = Path(folder)
    files = sorted({path for pattern in _PATTERNS for path in folder.glob(pattern)})
    lines = [f"{path.relative_to(folder).as_posix()} {file_digest(path)}\n" for path in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
