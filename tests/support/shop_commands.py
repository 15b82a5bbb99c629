"""Commands of the command line on the database of a shop, with an application."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from click.testing import Result
from typer.testing import CliRunner

from shieldtx.cli.program import program
from tests.support.write_side_shop import Shop

APP = """
from shieldtx import ShieldTx
shield = ShieldTx.from_env()
shield.declare("orders.placed")
shield.consumer("stock").handles("orders.placed")(lambda session, event: None)
"""

Run: TypeAlias = Callable[..., Result]


def runner_on(shop: Shop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command; with `app=False`, without the application.

    `answer` is the text of standard input; other named arguments are variables of the environment.
    """
    name = f"app_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(APP)
    monkeypatch.syspath_prepend(str(folder))

    def call(*words: str, app: bool = True, answer: str | None = None, **settings: str) -> Result:
        env = {
            "SHIELDTX_SOURCE": "shop",
            "SHIELDTX_DATABASE_URL": str(shop.engine.url),
            "SHIELDTX_APP": f"{name}:shield" if app else None,
            **settings,
        }
        return CliRunner().invoke(program, words, env=env, input=answer, catch_exceptions=False)

    return call
