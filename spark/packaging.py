"""Ships this package and its dependencies to the workers of a Spark cluster.

Spark itself reads the tables; Python on the workers reads only the records of topics. For that, a
worker needs a Python of the driver's version with PyArrow, at the path in PYSPARK_PYTHON. The
worker needs no installation of shieldtx: Spark copies a file with the code to each worker.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from shieldtx._resources import PACKAGE

FILE: Final = "shieldtx-code.zip"
# The package's own __init__ imports all modules, also those that workers do not need.
_FRONT_DOOR: Final = '"""shieldtx, as far as Spark\'s workers need it."""\n'
_CLIENT: Final = "kafka"
_SUFFIXES: Final = frozenset({".py", ".json"})
# Spark puts shipped files second on the path of its Pythons. First is the start folder. The Pythons
# that plan a read, next to the driver, start in the user's working directory. A checkout there
# would be imported instead, whose __init__ needs packages that this Python lacks.
_SAFE_PATH: Final = "PYTHONSAFEPATH"
# Any time will do: Spark distinguishes files by name.
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)


def ship(spark: SparkSession, scratch: Path) -> None:
    """Copy the code to all workers; in local mode they have it already.

    Call this before the first data source is registered. `scratch` is a folder that lasts as long
    as the session.
    """
    context = spark.sparkContext
    if not (context.master or "").startswith("local"):
        context.environment[_SAFE_PATH] = "1"
        context.addPyFile(str(pack(scratch / FILE)))


def pack(file: Path) -> Path:
    """Write the code into a ZIP file from which Python can import it; return the file."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in sorted(_code()):
            packed.writestr(zipfile.ZipInfo(name, _LONG_AGO), content, zipfile.ZIP_DEFLATED)
    return file


def _code() -> Iterator[tuple[str, str]]:
    front_door = f"{PACKAGE.name}/__init__.py"
    yield front_door, _FRONT_DOOR
    own = Path(__file__).resolve().parent
    # Under the current name of this package: next to shieldtx in a checkout, inside it in a wheel.
    folders = {
        PACKAGE.name: PACKAGE,
        __name__.rpartition(".")[0].replace(".", "/"): own,
        _CLIENT: _folder_of(_CLIENT),
    }
    named = {
        f"{name}/{file.relative_to(folder).as_posix()}": file
        for name, folder in folders.items()
        for file in folder.rglob("*")
        if file.suffix in _SUFFIXES
    }
    for name, file in named.items():
        if name != front_door:
            yield name, file.read_text(encoding="utf-8")


def _folder_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None  # noqa: S101  shieldtx itself needs the package
    assert spec.origin is not None  # noqa: S101
    return Path(spec.origin).parent
