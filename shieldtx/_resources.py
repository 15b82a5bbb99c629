"""Where the folders that travel with the package are: beside it in a checkout, in it in a wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def resource_folder(name: str) -> Path:
    """Return the folder `migrations` or `spark`; raises FileNotFoundError when it is missing."""
    for folder in (PACKAGE / name, PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"shieldtx was installed without its folder {name!r}; install it from a wheel or a checkout"
    )
