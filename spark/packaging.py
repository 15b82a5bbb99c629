"""Brings this package, and what it needs, to the workers of a Spark cluster.

Tables are read by Spark itself; only the records of topics are read by Python on the workers. For
that they need a Python of the driver's version with PyArrow, at the path that PYSPARK_PYTHON names,
and nothing of shieldtx: it is put into a file that Spark hands to each of them.
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
# Its own __init__ imports the whole of the package, and with it what workers have no use for.
_FRONT_DOOR: Final = '"""shieldtx, as far as Spark\'s workers need it."""\n'
_CLIENT: Final = "kafka"
_SUFFIXES: Final = frozenset({".py", ".json"})
# Spark puts what is shipped second on the path of its Pythons. First is the folder that they start
# in, and for those that plan a read, beside the driver, that is the one in which its user stands: a
# checkout there would be imported instead, whose __init__ needs what their Python does not have.
_SAFE_PATH: Final = "PYTHONSAFEPATH"
# Any will do: Spark tells files apart by their names.
_LONG_AGO: Final = (1980, 1, 1, 0, 0, 0)


def ship(spark: SparkSession, scratch: Path) -> None:
    """Hand the code to all workers; in local mode they have it.

    To be called before the first data source is registered. `scratch` is a folder that lasts as
    long as the session.
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
    # Under the name that this package has here: beside shieldtx in a checkout, in it in a wheel.
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
    assert spec is not None  # noqa: S101  shieldtx itself needs it
    assert spec.origin is not None  # noqa: S101
    return Path(spec.origin).parent
