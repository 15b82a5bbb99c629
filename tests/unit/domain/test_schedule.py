"""The due time of an event: a delay, a time or a level; other values are refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shieldtx import LEVELS, ChangeResult, EventRefused
from shieldtx.domain.schedule import EARLIEST, LATEST, Due, due
from tests.support.project import ROOT

HOUR = timedelta(hours=1)
MOMENT = timedelta(microseconds=1)
DOCUMENTED = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
NOON = datetime(2031, 5, 1, 12, tzinfo=UTC)


def test_levels_are_those_of_rocketmq() -> None:
    units = {"s": "seconds", "m": "minutes", "h": "hours"}
    assert list(LEVELS) == [
        timedelta(**{units[word[-1]]: int(word[:-1])}) for word in DOCUMENTED.split()
    ]


@pytest.mark.parametrize(
    ("given", "when"),
    [
        ({}, Due()),
        ({"delay": HOUR}, Due(delay=HOUR)),
        ({"delay": timedelta(0)}, Due(delay=timedelta(0))),
        ({"delay": timedelta(days=30)}, Due(delay=timedelta(days=30))),
        ({"at": NOON}, Due(at=NOON)),
        ({"level": 1}, Due(delay=timedelta(seconds=1))),
        ({"level": 3}, Due(delay=timedelta(seconds=10))),
        ({"level": 18}, Due(delay=timedelta(hours=2))),
    ],
)
def test_delay_time_or_level_chooses_the_due_time(given, when) -> None:
    assert due(**given) == when


@pytest.mark.parametrize(
    ("given", "field", "problem"),
    [
        ({"delay": HOUR, "at": NOON}, "delay", "only one"),
        ({"delay": HOUR, "level": 3}, "delay", "only one"),
        ({"at": NOON, "level": 3}, "at", "only one"),
        ({"delay": HOUR, "at": NOON, "level": 3}, "delay", "only one"),
        ({"level": 0}, "level", "0 is not a level: levels are 1 to 18"),
        ({"level": 19}, "level", "19 is not a level"),
        ({"level": -1}, "level", "-1 is not a level"),
        ({"level": True}, "level", "True is not a level"),
        ({"level": "3"}, "level", "'3' is not a level"),
        ({"delay": -HOUR}, "delay", "in the past"),
        ({"delay": 60}, "delay", "int is not a timedelta"),
        ({"delay": timedelta.max}, "delay", "too far"),
        ({"at": NOON.replace(tzinfo=None)}, "at", "no time zone"),
        ({"at": "2031-05-01"}, "at", "a str is not a datetime"),
        ({"at": datetime.max.replace(tzinfo=timezone(-HOUR))}, "at", "too near"),
        ({"at": datetime.max.replace(tzinfo=UTC)}, "at", "too near to an end of the calendar"),
        ({"at": datetime.min.replace(tzinfo=UTC)}, "at", "due times are from 1?0*1-01-02"),
        ({"at": datetime.min.replace(tzinfo=timezone(HOUR))}, "at", "to 9999-12-30"),
        ({"at": EARLIEST - MOMENT}, "at", "too near"),
        ({"at": LATEST + MOMENT}, "at", "too near"),
        ({"delay": LATEST - datetime.now(UTC) + HOUR}, "delay", "too far"),
    ],
)
def test_invalid_due_time_is_refused_by_name(given, field, problem) -> None:
    with pytest.raises(EventRefused, match=problem) as caught:
        due(**given)
    assert caught.value.field == field


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=365 * 100)))
def test_any_delay_up_to_a_century_is_valid(delay: timedelta) -> None:
    assert due(delay=delay) == Due(delay=delay)


PAGE = (ROOT / "docs" / "how-to" / "delayed-events.md").read_text()


def test_page_lists_the_existing_levels() -> None:
    (row,) = re.findall(r"^\| delay \| (.*) \|$", PAGE, re.MULTILINE)
    assert row.split(" | ") == DOCUMENTED.split()


def test_page_explains_every_result_and_no_other() -> None:
    explained = re.findall(r"^\| `([a-z ]+)` \|", PAGE, re.MULTILINE)
    assert explained == [result.value for result in ChangeResult]


@pytest.mark.parametrize("at", [EARLIEST, LATEST])
def test_first_and_last_days_of_the_calendar_are_valid(at: datetime) -> None:
    assert due(at=at) == Due(at=at)
