"""The public names of the package, which are imported at their first use."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import shieldtx
from shieldtx import errors


def test_every_public_name_has_a_module() -> None:
    assert set(shieldtx._HOMES) == set(shieldtx.__all__)
    assert all(getattr(shieldtx, name) is not None for name in shieldtx.__all__)
    assert set(shieldtx.__all__) <= set(dir(shieldtx))


def test_modules_of_public_names_are_attributes_at_once() -> None:
    code = "import shieldtx; print(shieldtx.errors.Refused.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Refused\n"


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Shield'"):
        _ = shieldtx.Shield


def test_command_line_handles_signals_before_slow_imports() -> None:
    code = "import shieldtx.cli, sys; print('sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_errors_that_an_application_meets_are_public() -> None:
    # The others reach the command line, or are kept with a record.
    internal = {
        "AlreadyRunning",
        "NameTaken",
        "NotAuthorised",
        "UndecodableRecord",
        "UnknownSchemaVersion",
        "UpgradeBlocked",
    }
    all_errors = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ShieldTxError)
    }
    assert all_errors - internal == all_errors & set(shieldtx.__all__)


def test_version_is_that_of_the_installed_package() -> None:
    assert shieldtx.__version__ == version("shieldtx")
