"""Packages made on the spot, and pip without a network."""

import os
import zipfile


def make_wheel(folder, name, version, **files):
    """A minimal wheel, written by hand."""
    info = f"{name}-{version}.dist-info"
    contents = {f"{name}/{file}.py": text for file, text in files.items()}
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    contents[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in contents) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in contents.items():
            wheel.writestr(path, text)


def offline(folder):
    """Environment variables that have pip take wheels from a folder, and from nowhere else."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}
