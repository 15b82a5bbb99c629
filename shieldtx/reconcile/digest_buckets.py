"""How events are sorted into buckets whose digests are compared instead of their rows.

A bucket is a range of event ids. Ids that shieldtx makes are UUIDv7, in the order of time, so that
the events of a bucket are neighbours in the table too, and those of a few buckets are found by the
primary key without another scan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from uuid import UUID

_ROWS = 100
"""In a bucket, about. Fewer: more digests to compare. More: more rows to read for each mismatch."""
_FEWEST, _MOST = 1, 1 << 17
_DIGITS = 15
"""Hexadecimal, of an id: what PostgreSQL's bigint can hold."""
_REST = "0" * (32 - _DIGITS)
_LOWEST = UUID(int=0)


_SQL = """width_bucket({{row}}.event_id, (
    SELECT array_agg((lpad(to_hex(edge), {digits}, '0') || '{rest}')::uuid ORDER BY edge)
    FROM (SELECT DISTINCT low + width / {steps} * step + width % {steps} * step / {steps} AS edge
          FROM unnest(ARRAY[{lows}]::bigint[], ARRAY[{widths}]::bigint[]) AS part(low, width),
               generate_series(0, {steps}) AS step) AS edges))"""


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Ranges of ids: between each two bounds lie `steps` of them, all of the same width."""

    bounds: tuple[int, ...]
    """The first 60 bits of ids, ascending, two at least."""
    steps: int

    @property
    def number(self) -> int:
        """How many there are, with the one below the first bound and the one above the last."""
        return len(self._edges) + 1

    @property
    def sql(self) -> str:
        """The bucket of `{row}`'s event, in PostgreSQL's words.

        The edges are made by the server itself, once a statement.
        """
        lows, widths = zip(*self._parts, strict=True)
        return _SQL.format(
            digits=_DIGITS, rest=_REST, steps=self.steps, lows=_listed(lows), widths=_listed(widths)
        )

    def sql_of(self, numbers: Collection[int]) -> str:
        """The bucket of `{row}`'s event if it is one of these, else NULL, in PostgreSQL's words.

        Without the edges of all others: to make a hundred thousand of them takes 0.4 s.
        """
        if not numbers:
            return "NULL::int"
        edges: list[str] = []
        found: list[str] = []
        for number in sorted(set(numbers)):
            low, high = self._range(number)
            edges += [str(edge) for edge in (low or _LOWEST, high) if edge is not None]
            found += [str(number), "NULL"]
        return (
            f"(ARRAY[{', '.join(found)}]::int[])"
            f"[width_bucket({{row}}.event_id, '{{{{{', '.join(edges)}}}}}'::uuid[])]"
        )

    def ranges(self, numbers: Collection[int]) -> list[tuple[UUID | None, UUID | None]]:
        """Return the ranges of ids of some buckets, neighbours in one: from, and up to before."""
        found: list[tuple[UUID | None, UUID | None]] = []
        for low, high in map(self._range, sorted(set(numbers))):
            if found and found[-1][1] == low and low is not None:
                found[-1] = (found[-1][0], high)
            else:
                found.append((low, high))
        return found

    def _range(self, number: int) -> tuple[UUID | None, UUID | None]:
        edges = self._edges
        return (
            _id(edges[number - 1]) if number > 0 else None,
            _id(edges[number]) if number < len(edges) else None,
        )

    @cached_property
    def _edges(self) -> Sequence[int]:
        return sorted(
            {
                low
                + (high - low) // self.steps * step
                + (high - low) % self.steps * step // self.steps
                for low, high in zip(self.bounds, self.bounds[1:], strict=False)
                for step in range(self.steps + 1)
            }
        )

    @property
    def _parts(self) -> list[tuple[int, int]]:
        """From where the parts between two bounds go, and how far."""
        return [(low, high - low) for low, high in pairwise(self.bounds)]


ONE = Buckets(bounds=(0, 1), steps=1)
"""Where no digests are compared."""


def buckets_for(rows: int, samples: Iterable[UUID]) -> Buckets:
    """Return buckets for so many rows, by ids that divide the rows into parts of about one size."""
    bounds = sorted({sample.int >> (128 - 4 * _DIGITS) for sample in samples})
    if len(bounds) < 2:  # noqa: PLR2004  the two ends of a range
        return ONE
    bounds = _thinned(bounds)
    wanted = min(max(rows // _ROWS, _FEWEST), _MOST)
    return Buckets(bounds=tuple(bounds), steps=max(wanted // (len(bounds) - 1), 1))


def _thinned(bounds: list[int]) -> list[int]:
    """Keep no more than divide the rows into `_MOST` parts: the ends, and others evenly.

    Each service has samples of its own, so that many services have more of them than a digest has
    numbers for buckets.
    """
    last = len(bounds) - 1
    if last <= _MOST:
        return bounds
    return [bounds[last * number // _MOST] for number in range(_MOST + 1)]


def _id(prefix: int) -> UUID:
    return UUID(int=prefix << (128 - 4 * _DIGITS))


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
