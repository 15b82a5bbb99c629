"""Where an error was raised: the line of the application's code, for tables and logs."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from traceback import walk_tb
from typing import Final

from shieldtx.domain.callables import innermost_of, shown_path
from shieldtx.domain.error_groups import leaves_of

_PACKAGE: Final = f"{Path(__file__).parents[1]}{os.sep}"
_LIBRARIES: Final = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def raise_site_of(error: BaseException, function: object = None) -> str:
    """Return where the application's code raised an error, as `folder/file.py:12 in function`.

    This is the innermost frame outside of shieldtx, the standard library and other packages: a
    library raises the error of a wrong call in its own code. The package of the `function` that
    was called counts as the application's, wherever it is installed. "" where no frame does.
    """
    leaves = list(leaves_of(error))
    own = _folder_of(function)
    cause = error.__cause__
    for each in (leaves[0] if len(leaves) == 1 else error, error, cause):
        if each is not None and (site := _site_in(each, own)):
            return site
    return ""


def _site_in(error: BaseException, own: str) -> str:
    site = ""
    for frame, line in walk_tb(error.__traceback__):
        code = frame.f_code
        if _is_of_application(code.co_filename, own):
            site = f"{shown_path(code.co_filename)}:{line} in {code.co_name}"
    return site


def _is_of_application(filename: str, own: str) -> bool:
    if own and filename.startswith(own):
        return True
    return not filename.startswith((_PACKAGE, "<", *_LIBRARIES))


def _folder_of(function: object) -> str:
    """Return the folder of a function's outermost package, or the file of its module."""
    function = innermost_of(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    depth = (getattr(function, "__module__", None) or "").count(".")
    path = Path(code.co_filename)
    if depth == 0 or depth > len(path.parents):
        return str(path)
    return f"{path.parents[depth - 1]}{os.sep}"
