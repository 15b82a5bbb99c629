"""Sample findings for the reports of a reconciliation: few, many, none, and hostile ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from shieldtx.domain.states import InboxStatus, OutboxStatus, TxKind
from shieldtx.reconcile.findings import TOPICS, Bounds, Count, Day, Findings, FoundRow, Pair
from shieldtx.reconcile.request import Selection
from shieldtx.reconcile.run_context import DatabaseAddress, EarlierRun, RunContext
from shieldtx.reconcile.verdicts import Verdict
from shieldtx.reconcile.window import Window

NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
TODAY = NOON.date()
PAIR = Pair(kind=TxKind.COMMIT, upstream="orders", downstream="stock", group="reserve")
BACK = Pair(kind=TxKind.ROLLBACK, upstream="stock", downstream="orders", group="refund")
TOPIC = Pair(kind=TxKind.COMMIT, upstream="orders", downstream=TOPICS, group="orders.placed")

# Markup, quotes, ends of a style and of character data, a template's placeholders, a terminal's
# escape, Rich's markup, Hebrew, and a character that reverses the direction of all text after it.
HOSTILE = (
    "<script>document.title='gone'</script>\"'></style>]]>&amp;{{ findings }}{% raw %}"
    "\x1b[31m[red]\N{HEBREW LETTER ALEF}\N{HEBREW LETTER BET}\N{RIGHT-TO-LEFT OVERRIDE}end"
)
HOSTILE_AS_SHOWN = HOSTILE.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")


def findings(*counts: tuple[Pair, Verdict, int], obstacle: str = "", **changes: Any) -> Findings:
    """Make findings of a run at noon over one stream."""
    fields: dict[str, Any] = {
        "started_at": NOON,
        "seconds": 4.2,
        "margin": timedelta(minutes=15),
        "bounds": (bounds(PAIR, obstacle=obstacle),),
        "counts": tuple(Count(pair=pair, verdict=v, rows=rows) for pair, v, rows in counts),
        "first_rows": (),
    }
    return Findings(**(fields | changes))


def bounds(pair: Pair, *, obstacle: str = "", **changes: Any) -> Bounds:
    """Make the bounds of a pair's stream, until a quarter of an hour before noon."""
    window = (
        Window(obstacle=obstacle)
        if obstacle
        else Window(**({"watermark": NOON - timedelta(minutes=15)} | changes))
    )
    return Bounds(kind=pair.kind, upstream=pair.upstream, downstream=pair.downstream, window=window)


def missing(event_id: str = "0199-a", **changes: Any) -> FoundRow:
    """Make the row of an event that was published and not received."""
    fields: dict[str, Any] = {
        "pair": PAIR,
        "verdict": Verdict.MISSING_DOWNSTREAM,
        "event_id": event_id,
        "topic": "orders.placed",
        "event_type": "order.placed",
        "upstream_status": OutboxStatus.PROCESSED,
        "created_at": NOON - timedelta(hours=2),
        "published_at": NOON - timedelta(hours=2) + timedelta(milliseconds=850),
    }
    return FoundRow(**(fields | changes))


def given_up(event_id: str = "0199-g", **changes: Any) -> FoundRow:
    """Make the row of an event that was received and given up, with all fields known."""
    fields: dict[str, Any] = {
        "verdict": Verdict.NEITHER_EFFECT_NOR_COMPENSATION,
        "downstream_status": InboxStatus.MAX_RECONSUMED,
        "attempts": 10,
        "received_at": NOON - timedelta(hours=1, minutes=59),
        "settled_at": NOON - timedelta(hours=1),
        "record": "3:1042",
    }
    return missing(event_id, **(fields | changes))


def days(pair: Pair, number: int, *, last: date = TODAY, **changes: Any) -> tuple[Day, ...]:
    """Make this many days of a pair, with growing counts and delays."""
    return tuple(
        replace(
            Day(
                pair=pair,
                day=last - timedelta(days=number - n),
                events=1_000 + 137 * (n * 7 % 11),
                mismatches=3 if n % 9 == 4 else 0,
                publish_ms=(12.0 + n, 60.0 + 5 * n, 900.0 + 40 * (n * 5 % 13)),
                effect_ms=(40.0 + n, 250.0 + 9 * n, 30_000.0 + 9_000 * (n * 5 % 13)),
            ),
            **changes,
        )
        for n in range(1, number + 1)
    )


def context(**changes: Any) -> RunContext:
    """Make the circumstances of a run, one night after a report in the folder next to it."""
    fields: dict[str, Any] = {
        "version": "0.1.0",
        "configuration": "nightly",
        "options": ("--config", "/etc/shieldtx/nightly.toml"),
        "databases": (
            DatabaseAddress(service="orders", address="db1.example:5432/orders"),
            DatabaseAddress(
                service="stock", address="db2.example:5432/stock", replica="db3.example:5432/stock"
            ),
        ),
        "earlier": EarlierRun(
            run_id="20260114-120000-11aa",
            started_at=NOON - timedelta(days=1),
            outcome="MISMATCHES",
            page="../2026-01-14-120000/report.html",
            totals={"MATCHED": 1_100_000, "MISSING_DOWNSTREAM": 27, "STUCK": 1},
        ),
    }
    return RunContext(**(fields | changes))


def few_findings() -> Findings:
    """Return the findings of an ordinary run, with a few rows of each kind."""
    return findings(
        (PAIR, Verdict.MATCHED, 1_204_511),
        (PAIR, Verdict.REFUSED, 31),
        (PAIR, Verdict.IN_FLIGHT, 212),
        (PAIR, Verdict.MISSING_DOWNSTREAM, 30),
        (PAIR, Verdict.NEITHER_EFFECT_NOR_COMPENSATION, 1),
        (BACK, Verdict.MATCHED, 31),
        (TOPIC, Verdict.ON_TOPIC, 1_204_573),
        (TOPIC, Verdict.NOT_ON_TOPIC, 2),
        (TOPIC, Verdict.ABSENT_FROM_TOPIC, 1),
        (TOPIC, Verdict.DUPLICATE_RECORDS, 4),
        (TOPIC, Verdict.BEFORE_TOPIC, 90_112),
        run_id="20260115-120000-7f3a",
        mismatched_events=30,
        context=context(),
        seconds=48.31,
        bounds=(
            bounds(PAIR, horizon=NOON - timedelta(days=7)),
            bounds(BACK, obstacle="the role may not see running transactions: GRANT pg_monitor"),
            bounds(TOPIC),
        ),
        first_rows=(
            *(
                missing(f"0199c2e4-7a11-7c3e-9d7f-{n:012x}", key="sha256:0f343b093112")
                for n in range(4)
            ),
            missing(
                "0199c2e4-7a11-7c3e-9d7f-000000000000",
                pair=TOPIC,
                verdict=Verdict.ABSENT_FROM_TOPIC,
                key="sha256:0f343b093112",
            ),
            given_up(
                key="4711",
                biz_key="order-4711",
                payload='{"order": 4711, "lines": [{"sku": "A-1", "pieces": 2}]}',
            ),
        ),
        days=(*days(PAIR, 30), *days(BACK, 2), *days(TOPIC, 30, effect_ms=None)),
        left_out=("stock has received events of crm, which is none of these services",),
        obstacles=("the topic orders.cancelled does not exist",),
    )


def many_findings() -> Findings:
    """Return the findings of many services with long names, long obstacles and every verdict."""
    pairs = [
        Pair(
            kind=kind,
            upstream=f"the-service-with-a-name-of-considerable-length-{n}",
            downstream=f"another_service_without_any_place_to_break_its_name_{n}" * (1 + n % 2),
            group=f"group.of.{'very.' * 8}long.name.{n}",
        )
        for n in range(8)
        for kind in TxKind
    ]
    verdicts = list(Verdict)
    return findings(
        *(
            (pair, verdict, 10 ** (n % 8) + m)
            for m, pair in enumerate(pairs)
            for n, verdict in enumerate(verdicts)
            if (n + m) % 3 or m < 2
        ),
        run_id="a-run",
        bounds=tuple(
            bounds(pair, obstacle="x" * 300 if n == 1 else "") for n, pair in enumerate(pairs)
        ),
        first_rows=tuple(
            missing(
                f"{verdict}-{'0' * 60}", verdict=verdict, topic="topic." * 40, pair=pairs[n % 8]
            )
            for n, verdict in enumerate(verdicts)
            if verdict.is_mismatch
        ),
        days=tuple(day for pair in pairs[:3] for day in days(pair, 400)),
    )


def hostile(text: str = HOSTILE) -> Findings:
    """Return findings in which one text replaces every text of users."""
    pair = Pair(kind=TxKind.COMMIT, upstream=text, downstream=text, group=text)
    row = given_up(
        text,
        pair=pair,
        topic=text,
        event_type=text,
        causation_id=text,
        record=text,
        key=text,
        biz_key=text,
        payload=text,
    )
    return findings(
        (pair, Verdict.MATCHED, 7),
        (pair, row.verdict, 1),
        bounds=(bounds(pair), bounds(pair, obstacle=text)),
        run_id=text,
        context=context(
            version=text,
            configuration=text,
            options=("--config", text),
            databases=(DatabaseAddress(service=text, address=text, replica=text),),
            earlier=EarlierRun(run_id=text, started_at=NOON, outcome=text),
        ),
        selection=Selection(moved_since={text: NOON}),
        first_rows=(row,),
        days=days(pair, 3),
        left_out=(text,),
        remarks=(text,),
        obstacles=(text,),
    )


def all_findings() -> dict[str, Findings]:
    """Return every kind of findings, by name."""
    return {
        "nothing": findings(),
        "few": few_findings(),
        "many": many_findings(),
        "hostile": hostile(),
    }
