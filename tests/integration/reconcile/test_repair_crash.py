"""A repair that is killed at any point and run again ends as an uninterrupted repair."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from shieldtx.ports.repair import RepairAction, Repaired
from shieldtx.reconcile.repair.listed_rows import listed_rows
from shieldtx.reconcile.verdicts import Verdict
from tests.support import child_process
from tests.support.project import ROOT
from tests.support.repair_process import BATCH, PLACES
from tests.support.repair_scenarios import Pair, audited, owed, write_parquet
from tests.support.service import Service

ROWS = 2 * BATCH + 2


@pytest.fixture
def pair(make_service: Callable[..., Service]) -> Pair:
    return Pair(make_service)


def repair_and_die(pair: Pair, folder: Path, place: str, nth: int) -> None:
    urls = [
        service.engine.url.render_as_string(hide_password=False)
        for service in (pair.orders, pair.stock)
    ]
    command = [
        sys.executable,
        "-m",
        "tests.support.repair_process",
        *urls,
        str(folder),
        place,
        str(nth),
    ]
    killed = child_process.start(command, cwd=ROOT)
    assert killed.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("place", PLACES)
def test_missing_events_are_handed_over_once_and_in_order(pair: Pair, tmp_path: Path, place: str):
    pair.write(ROWS)
    pair.work()
    pair.lose_inbox_rows("stock")
    missing = pair.missing("stock")
    write_parquet(tmp_path, missing[::-1])

    repair_and_die(pair, tmp_path, place, 2)

    done = 2 * BATCH if place == "between two batches" else BATCH
    assert len(pair.received("stock")) == done
    assert len(audited(pair.stock)) == done

    again = pair.repair(list(listed_rows(tmp_path, list(Verdict))), batch=BATCH)

    assert again.refused == {}
    assert again.repaired == {
        (Verdict.MISSING_DOWNSTREAM, RepairAction.HAND_OVER): Repaired(
            done=ROWS - done, needless=done
        )
    }
    assert [row["event_id"] for row in pair.received("stock")] == [row.event_id for row in missing]
    assert Counter(audited(pair.stock)) == Counter(str(row.event_id) for row in missing)
    pair.work()
    assert len(pair.stock.effects("stock")) == ROWS


@pytest.mark.parametrize("place", PLACES)
def test_absent_events_are_published_again_once(pair: Pair, tmp_path: Path, place: str):
    pair.write(ROWS)
    pair.work()
    pair.lose_inbox_rows("stock")
    absent = pair.absent()
    write_parquet(tmp_path, absent)

    repair_and_die(pair, tmp_path, place, 2)

    done = 2 * BATCH if place == "between two batches" else BATCH
    assert pair.orders.outbox() == {"INIT": done, "PROCESSED": ROWS - done}
    assert len(audited(pair.orders)) == done

    again = pair.repair(list(listed_rows(tmp_path, list(Verdict))), batch=BATCH)

    assert again.repaired == {
        (Verdict.ABSENT_FROM_TOPIC, RepairAction.PUBLISH_AGAIN): Repaired(
            done=ROWS - done, needless=done
        )
    }
    assert pair.orders.outbox() == {"INIT": ROWS}
    assert Counter(audited(pair.orders)) == Counter(str(row.event_id) for row in absent)
    pair.work()
    assert len(pair.stock.effects("stock")) == ROWS


@pytest.mark.parametrize("place", PLACES)
def test_missing_rollbacks_are_written_once(pair: Pair, tmp_path: Path, place: str):
    found = owed(pair, ROWS, "stock")
    write_parquet(tmp_path, found)
    # Each of these rows is written by a statement of its own.
    nth = BATCH + 2 if place == "before the write" else 2

    repair_and_die(pair, tmp_path, place, nth)

    done = 2 * BATCH if place == "between two batches" else BATCH
    assert pair.stock.outbox() == {"INIT": done}
    assert len(audited(pair.stock)) == done

    pair.repair(list(listed_rows(tmp_path, list(Verdict))), batch=BATCH)

    assert pair.stock.outbox() == {"INIT": ROWS}
    assert Counter(audited(pair.stock)) == Counter(str(row.event_id) for row in found)
    pair.work()
    assert len(pair.orders.effects("compensated")) == ROWS
