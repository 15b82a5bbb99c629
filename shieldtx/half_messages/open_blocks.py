"""The open blocks around a call, and the block to which the call's local transaction belongs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from shieldtx.errors import TransactionRefused
from shieldtx.outbox.transaction import CallersTransaction


@dataclass(frozen=True, slots=True)
class DecoratedCall:
    """One of the decorators around a method; each decorator opens a block for a call."""

    function: Callable[..., Any]
    """The method itself."""
    layer: int
    """1 for the innermost decorator."""

    def is_around(self, inner: DecoratedCall | None) -> bool:
        """Whether both belong to one call: a method that calls itself starts with new ones."""
        return inner is not None and inner.function is self.function and inner.layer < self.layer


class OpenBlock(Protocol):
    """A block around one local transaction."""

    call: DecoratedCall | None
    """The decorator's call; None for a block without a decorator."""

    @property
    def has_ended(self) -> bool:
        """Whether no local transaction can belong to the block any more."""

    def guard(self, transaction: CallersTransaction) -> None:
        """Guard the transaction with the half messages of the block."""

    def note_guard(self) -> None:
        """Record that a local transaction of the block was to be guarded, even if it was not."""


_OPEN: ContextVar[tuple[OpenBlock, ...]] = ContextVar("shieldtx.open_blocks", default=())


def add_open(block: OpenBlock) -> None:
    """Register a block for `guard_open`, here and in the tasks that are started inside of it."""
    _OPEN.set((*_OPEN.get(), block))


def remove_open(block: OpenBlock) -> None:
    """Unregister a block that ends; the tasks started inside of it keep it."""
    _OPEN.set(tuple(other for other in _OPEN.get() if other is not block))


def guard_open(transaction: CallersTransaction) -> None:
    """Guard the transaction with the half messages of the block around this call.

    A decorated method uses the blocks of all its decorators, and not those of its callers, which
    have local transactions of their own. Raises TransactionRefused without a block, and in a task
    or a thread that has outlived its block. Also raises it for a block inside of others, because
    the owner of the transaction is unknown.
    """
    blocks = _OPEN.get()
    if not blocks:
        raise TransactionRefused(
            "there is no half message around this call: guard a local transaction inside of "
            "`with shield.half(...)` or of a method with @shield.transactional, or name the ids of "
            "those that were prepared by hand"
        )
    # The blocks around the ended one have local transactions of their own.
    if blocks[-1].has_ended:
        raise TransactionRefused(
            f"the block of {blocks[-1]}, in which this task or thread was started, has ended: wait "
            "for the task inside of the block, or open a block with shield.half(...) in the task"
        )
    for block in _of_one_transaction([block for block in blocks if not block.has_ended]):
        block.guard(transaction)


def _of_one_transaction(blocks: Sequence[OpenBlock]) -> Sequence[OpenBlock]:
    *others, nearest = blocks
    if nearest.call is None and others:
        for block in blocks:
            block.note_guard()
        raise TransactionRefused(
            f"{nearest} is inside of the block of {others[-1]}, and which of them this transaction "
            "belongs to is unknown: call `guard` of the block itself, of each if it is both's, or "
            "prepare several messages in one block with its `prepare`"
        )
    found = [nearest]
    while others and others[-1].call is not None and others[-1].call.is_around(found[0].call):
        found.insert(0, others.pop())
    return found
