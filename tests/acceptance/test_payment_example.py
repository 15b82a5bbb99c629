"""The example of half messages, as a new user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from ast import literal_eval

import pytest

from examples.payment import __main__ as example
from examples.payment.bank import PHASES
from examples.retail.stage import PROJECT

pytestmark = pytest.mark.demo


def run() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.payment", "--orders", "60"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=PROJECT,
    )


def counts(label: str, said: str) -> dict[str, int]:
    found = re.search(rf"{label}: ({{.*?}})", said)
    assert found is not None, said
    return literal_eval(found[1])


def test_money_and_orders_agree_if_the_bank_dies_in_any_phase() -> None:
    done = run()

    assert done.returncode == 0, done.stdout + done.stderr
    assert "money and orders agree" in done.stdout
    assert counts("the bank died", done.stdout) == dict.fromkeys(PHASES, 1)
    heard = counts("customers heard", done.stdout)
    assert heard["no answer"] >= len(PHASES) - 1
    assert counts("before the check-backs", done.stdout)["HALF"] == heard["no answer"]
    ended = counts("in the end", done.stdout)
    assert set(ended) == {"PROCESSED", "DISCARDED"}
    assert sum(ended.values()) == 60


def test_example_reports_accounts_that_do_not_agree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["payment", "--orders", "10"])
    monkeypatch.setattr(example.Shop, "paid", lambda self: {})
    assert example.main() == 1
    assert "they do not agree" in capsys.readouterr().out
