"""Buckets of events, whose digests are compared instead of the rows.

A bucket is a range of event ids. shieldtx generates UUIDv7 ids, which ascend with time. So the
events of a bucket are neighbours in the table, and the primary key finds the events of a few
buckets without another scan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from uuid import UUID

_ROWS = 100
"""The approximate number of rows in a bucket. Fewer rows: more digests to compare. More rows: more
rows to read for each mismatch."""
_FEWEST, _MOST = 1, 1 << 17
_DIGITS = 15
"""Hexadecimal digits of an id that fit into PostgreSQL's bigint."""
_REST = "0" * (32 - _DIGITS)
_LOWEST = UUID(int=0)


_SQL = """width_bucket({{row}}.event_id, (
    SELECT array_agg((lpad(to_hex(edge), {digits}, '0') || '{rest}')::uuid ORDER BY edge)
    FROM (SELECT DISTINCT low + width / {steps} * step + width % {steps} * step / {steps} AS edge
          FROM unnest(ARRAY[{lows}]::bigint[], ARRAY[{widths}]::bigint[]) AS part(low, width),
               generate_series(0, {steps}) AS step) AS edges))"""


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Ranges of ids: `steps` ranges of the same width between each two neighbouring bounds."""

    bounds: tuple[int, ...]
    """The first 60 bits of ids, ascending; at least two."""
    steps: int

    @property
    def number(self) -> int:
        """The number of buckets, with the one below the first bound and the one above the last."""
        return len(self._edges) + 1

    @property
    def sql(self) -> str:
        """The bucket of `{row}`'s event, as an SQL expression of PostgreSQL.

        The server itself computes the edges, once for each statement.
        """
        lows, widths = zip(*self._parts, strict=True)
        return _SQL.format(
            digits=_DIGITS, rest=_REST, steps=self.steps, lows=_listed(lows), widths=_listed(widths)
        )

    def sql_of(self, numbers: Collection[int]) -> str:
        """Return an SQL expression for the bucket of `{row}`'s event; NULL outside these buckets.

        The expression leaves out the edges of all other buckets: computing 100,000 edges takes 0.4
        s.
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
        """Return the id ranges of some buckets, neighbours merged; the upper end is exclusive."""
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
        """The lower bound and the width of each part between two bounds."""
        return [(low, high - low) for low, high in pairwise(self.bounds)]


ONE = Buckets(bounds=(0, 1), steps=1)
"""The buckets of a run that compares no digests."""


def buckets_for(rows: int, samples: Iterable[UUID]) -> Buckets:
    """Return buckets for a number of rows; the sampled ids divide these into about equal parts."""
    bounds = sorted({sample.int >> (128 - 4 * _DIGITS) for sample in samples})
    if len(bounds) < 2:  # noqa: PLR2004  the two ends of a range
        return ONE
    bounds = _thinned(bounds)
    wanted = min(max(rows // _ROWS, _FEWEST), _MOST)
    return Buckets(bounds=tuple(bounds), steps=max(wanted // (len(bounds) - 1), 1))


def _thinned(bounds: list[int]) -> list[int]:
    """Keep at most `_MOST` parts: the first and the last bound, and evenly spaced ones between.

    Each service has its own samples. With many services there are more samples than a digest has
    bucket numbers.
    """
    last = len(bounds) - 1
    if last <= _MOST:
        return bounds
    return [bounds[last * number // _MOST] for number in range(_MOST + 1)]


def _id(prefix: int) -> UUID:
    return UUID(int=prefix << (128 - 4 * _DIGITS))


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
