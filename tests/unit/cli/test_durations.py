"""Durations of options, in the format of the settings."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from shieldtx.cli.durations import duration_of
from shieldtx.domain.durations import HOW_TO_WRITE
from shieldtx.errors import ConfigurationError
from shieldtx.settings.fields import Seconds, SecondsOrNever


@pytest.mark.parametrize(
    ("text", "kind", "duration"),
    [
        ("0", SecondsOrNever, timedelta(0)),
        ("1.5", Seconds, timedelta(seconds=1.5)),
        ("PT15M", Seconds, timedelta(minutes=15)),
        ("P7D", SecondsOrNever, timedelta(days=7)),
        ("2h", Seconds, timedelta(hours=2)),
        ("15 min", Seconds, timedelta(minutes=15)),
        ("5m", Seconds, timedelta(minutes=5)),
        ("58 min 2 s", Seconds, timedelta(minutes=58, seconds=2)),
        ("1h30m", Seconds, timedelta(hours=1, minutes=30)),
        ("7 Days", Seconds, timedelta(days=7)),
        ("1.5 hours", Seconds, timedelta(minutes=90)),
    ],
)
def test_duration_has_seconds_units_or_iso_8601(text: str, kind: Any, duration: timedelta):
    assert duration_of("--margin", text, kind) == duration


@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        ("5 weeks", Seconds, f"'5 weeks' is not a duration; {HOW_TO_WRITE}"),
        ("5 min 2 min", Seconds, f"'5 min 2 min' is not a duration; {HOW_TO_WRITE}"),
        ("2 hm", Seconds, f"'2 hm' is not a duration; {HOW_TO_WRITE}"),
        ("h", Seconds, f"'h' is not a duration; {HOW_TO_WRITE}"),
        ("nan", Seconds, f"'nan' is not a duration; {HOW_TO_WRITE}"),
        ("0 min", Seconds, "must be longer than 0 seconds"),
        ("999999999999 d", Seconds, "longer than a duration can be"),
        ("0", Seconds, "must be longer than 0 seconds"),
        ("-5", SecondsOrNever, "must not be below 0 seconds"),
        ("1e300", SecondsOrNever, "longer than a duration can be"),
        ("1e12", SecondsOrNever, "must not be longer than a century (36525 days)"),
    ],
)
def test_wrong_duration_names_the_option(text: str, kind: Any, problem: str):
    with pytest.raises(ConfigurationError) as error:
        duration_of("--margin", text, kind)
    assert str(error.value) == f"--margin: {problem}"
