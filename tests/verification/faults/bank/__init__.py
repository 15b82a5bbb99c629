"""Two banks: a transfer leaves one and is an event for the other, which may refuse it."""

from __future__ import annotations

from dataclasses import dataclass

TRANSFERRED = "bank.transferred"
STATED = "bank.stated"
"""The topic of account statements, which neither bank reads."""
OPENING_BALANCE = 1_000_000
"""Balance of each account upstream; downstream accounts are opened with 0."""


MARKER = "for-your-eyes-only-7c1e"
"""Part of the note of every transfer, which must not appear in a log or a reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """The payload of an event for the downstream bank."""

    account: str
    seq: int
    """1 for the first transfer of its account."""
    amount: int
    refuse: str = ""
    """How the downstream bank refuses the transfer.

    "": not at all. "at once". "slowly": after all its attempts. "by all": at once, as do its
    auditors. "halfway": its handler commits after half of its writes, and fails. "by constraint" or
    "by model": its note does not fit them.
    """
    undo: str = ""
    """Outcome of the upstream bank's compensation: "" or "never" (until the bank is repaired)."""
    note: str = ""
    """Private to the two banks."""


def auditors_of(group: str) -> str:
    """Return the name of the auditors' group that accompanies the group of a bank."""
    return f"{group}-auditors"


UPSTREAM_TABLES = """
CREATE TABLE account (name text PRIMARY KEY, balance bigint NOT NULL, last_seq int NOT NULL);
CREATE TABLE transfer (
    id uuid PRIMARY KEY, account text NOT NULL, seq int NOT NULL, amount bigint NOT NULL,
    UNIQUE (account, seq));
CREATE TABLE refund (n bigint GENERATED ALWAYS AS IDENTITY, id uuid, account text, amount bigint);
CREATE TABLE withdrawal (
    n bigint GENERATED ALWAYS AS IDENTITY, id uuid, account text, amount bigint);
"""

DOWNSTREAM_TABLES = """
CREATE TABLE account (name text PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE credit (
    n bigint GENERATED ALWAYS AS IDENTITY, id uuid, account text, seq int, amount bigint);
CREATE TABLE remark (note text CHECK (note = ''));
CREATE TABLE audit (n bigint GENERATED ALWAYS AS IDENTITY, id uuid, entry int NOT NULL);
"""
