"""Finds the folders of package data: next to the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def resource_folder(name: str) -> Path:
    """Return the folder `migrations` or `spark`; raises FileNotFoundError where it is missing."""
    for folder in (PACKAGE / name, PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"shieldtx was installed without its folder {name!r}; install it from a wheel or a checkout"
    )
