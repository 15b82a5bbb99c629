"""The names of the package for its users, which are imported when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import shieldtx


def test_every_public_name_has_a_home() -> None:
    assert set(shieldtx._HOMES) == set(shieldtx.__all__)
    assert all(getattr(shieldtx, name) is not None for name in shieldtx.__all__)
    assert set(shieldtx.__all__) <= set(dir(shieldtx))


def test_modules_of_public_names_are_attributes_at_once() -> None:
    code = "import shieldtx; print(shieldtx.errors.Refused.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Refused\n"


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Shield'"):
        _ = shieldtx.Shield


def test_the_command_line_heeds_signals_before_it_imports_what_takes_long() -> None:
    code = "import shieldtx.cli, sys; print('sqlalchemy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
