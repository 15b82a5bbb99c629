"""Tokens that contain the process that made them, so that its death can be proved on its host.

A lease ends only after its duration, because its owner may still run, unseen. On the host of the
owner, other processes can see more. A token is a UUID of version 8 (RFC 9562, custom content):

- 50 bits: a digest of the boot of the host, of the pid namespace and of the time namespace,
- 22 bits: the process id, which Linux limits to 2^22,
- 20 bits: the start of the process in clock ticks since the boot, since process ids are reused,
- 30 bits: random.

Where one of these cannot be read, tokens are random UUIDs of version 4, and prove nothing. Machines
that were cloned from one memory snapshot have the same boot: see `SHIELDTX_EARLY_TAKEOVER`.
"""

from __future__ import annotations

import os
import secrets
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID, uuid4

_HOST_BITS, _PID_BITS, _START_BITS, _RANDOM_BITS = 50, 22, 20, 30
_VERSION: Final = 8
_PROC: Final = Path("/proc")
_DEAD: Final = frozenset("ZX")
"""States of a process that has ended and that its parent has not awaited yet."""


class _Process(NamedTuple):
    """The process of a token."""

    host: int
    pid: int
    start: int


class _Stat(NamedTuple):
    state: str
    threads: int
    start: int


def process_token() -> UUID:
    """Return a new token of this process."""
    mine = _process(os.getpid())
    if mine is None:
        return uuid4()
    content = mine.host
    for value, bits in (
        (mine.pid, _PID_BITS),
        (mine.start, _START_BITS),
        (secrets.randbits(_RANDOM_BITS), _RANDOM_BITS),
    ):
        content = content << bits | value
    first, second, third = content >> 74, content >> 62 & 0xFFF, content & (1 << 62) - 1
    return UUID(int=first << 80 | _VERSION << 76 | second << 64 | 0b10 << 62 | third)


def has_died(token: UUID) -> bool:
    """Whether the process that made this token is known to have ended.

    False also for a process of another host, of another container, or of an unknown one.
    """
    process, mine = _process_of(token), _process(os.getpid())
    if process is None or mine is None or process.host != mine.host:
        return False
    try:
        # Unlike a missing folder in /proc, this proves it: `hidepid` hides the folders of others.
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    stat = _stat(str(process.pid))
    if stat is None:
        return False
    return _start(stat) != process.start or (stat.state in _DEAD and stat.threads <= 1)


def is_of_this_process(name: str) -> bool:
    """Whether this process made a name with `name_with_token`; True for a name without a token."""
    token = _token_in(name)
    process = None if token is None else _process_of(token)
    return process is None or process == _process(os.getpid())


def name_with_token(name: str) -> str:
    """Return a name that no other process or restart has: it ends with a token."""
    return f"{name}-{process_token().hex}"


def owner_has_died(name: str) -> bool:
    """Whether the process that made a name with `name_with_token` is known to have ended.

    A suffix that begins with "+" may have been added to the name.
    """
    token = _token_in(name)
    return token is not None and has_died(token)


def _token_in(name: str) -> UUID | None:
    text = name.partition("+")[0].rpartition("-")[2]
    try:
        return UUID(hex=text)
    except ValueError:
        return None


def _process_of(token: UUID) -> _Process | None:
    if token.version != _VERSION:
        return None
    content = (token.int >> 80) << 74 | (token.int >> 64 & 0xFFF) << 62 | token.int & (1 << 62) - 1
    content >>= _RANDOM_BITS
    start, content = content & (1 << _START_BITS) - 1, content >> _START_BITS
    pid, host = content & (1 << _PID_BITS) - 1, content >> _PID_BITS
    return _Process(host, pid, start) if pid else None


@lru_cache(maxsize=1)
def _process(pid: int) -> _Process | None:
    """Return this process, whose id is an argument since a fork changes it; None if unreadable."""
    try:
        # /proc may be that of another pid namespace, in which this id is that of another process.
        if str((_PROC / "self").readlink()) != str(pid):
            return None
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespaces = [_namespace("pid"), _namespace("time", required=False)]
    except (OSError, ValueError):
        return None
    stat = _stat("self")
    if stat is None or not boot or pid >> _PID_BITS:
        return None
    digest = blake2b("\n".join([boot, *namespaces]).encode(), digest_size=8).digest()
    return _Process(int.from_bytes(digest) >> (64 - _HOST_BITS), pid, _start(stat))


# The id of the child may be the one of an ancestor whose process is in the cache.
os.register_at_fork(after_in_child=_process.cache_clear)


def _namespace(kind: str, *, required: bool = True) -> str:
    """Return a namespace of this process, such as `pid:[4026531836]`; Linux before 5.6 has no time.

    Each number belongs to one namespace as long as one of its processes runs.
    """
    try:
        return str((_PROC / "self/ns" / kind).readlink())
    except FileNotFoundError:
        if required:
            raise
        return ""


def _stat(process: str) -> _Stat | None:
    """Return the state, the number of threads and the start of a process; None if unreadable."""
    try:
        text = (_PROC / process / "stat").read_text(encoding="utf-8", errors="replace")
        # The second field, the name of the program, may contain spaces and parentheses.
        fields = text[text.rindex(")") + 1 :].split()
        return _Stat(state=fields[0], threads=int(fields[17]), start=int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def _start(stat: _Stat) -> int:
    return stat.start & (1 << _START_BITS) - 1
