"""Steps of a case, each taken on its caller and recorded in the book of its pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from sqlalchemy.exc import IntegrityError

from tests.integration.outbox.callers.book import Book, Fate, Pair
from tests.integration.outbox.callers.caller import Caller
from tests.integration.outbox.callers.cases import Driver, Isolation, Mode, Step
from tests.integration.outbox.callers.databases import TAKEN
from tests.integration.outbox.callers.listeners import FIRST, HEARD_BY
from tests.support.write_side_shop import Order

IN_FLUSH = {
    Step.BEFORE_FLUSH: "before_flush",
    Step.AFTER_FLUSH: "after_flush",
    Step.AFTER_FLUSH_POSTEXEC: "after_flush_postexec",
}
IN_LISTENER = {
    Step.BEFORE_COMMIT_FIRST: "before_commit" + FIRST,
    Step.BEFORE_COMMIT_LAST: "before_commit",
    Step.ROW_BEFORE_COMMIT_LAST: "before_commit",
    Step.AFTER_COMMIT: "after_commit",
    Step.AFTER_ROLLBACK: "after_rollback",
    Step.AFTER_SOFT_ROLLBACK: "after_soft_rollback",
}
ON_A_CONNECTION = {
    # A connection has no objects and no events of a session.
    Step.OBJECT_EVENT: Step.ROW_EVENT,
    Step.EVENT_OBJECT: Step.EVENT_ROW,
    **dict.fromkeys([*IN_FLUSH, *IN_LISTENER], Step.ROW_EVENT),
    Step.FLUSH: Step.READ,
    Step.SWALLOW_FLUSH: Step.SWALLOW,
}


class Steps:
    """Takes the steps of one case."""

    def __init__(self, caller: Caller, book: Book, numbers: Iterator[int]) -> None:
        self._case = caller.case
        self._caller = caller
        self._book = book
        self._numbers = numbers
        self._in_flush: dict[int, tuple[str, Pair]] = {}
        """Pairs whose event a listener adds when their object is flushed, by their number."""
        self._flushed: list[Pair] = []
        """Pairs whose object was flushed, and whose event is added after the flush."""
        self._in_listener: dict[str, list[Callable[[], None]]] = {}
        """The actions of a listener, by the name of its event."""
        self._is_ended = False
        """Whether the driver's transaction was ended without SQLAlchemy."""
        self.objects_after_events: list[Pair] = []
        """Pairs whose event was added before their object."""

    def listen(self) -> None:
        """Let the listeners of the session run the actions that steps leave to them."""
        if self._case.mode is not Mode.BARE:
            self._caller.sync_session.info[HEARD_BY] = self._hear

    def take(self, step: Step) -> None:
        if self._case.mode is Mode.BARE:
            step = ON_A_CONNECTION.get(step, step)
        if step in IN_FLUSH:
            self._leave_to_flush(step)
        elif step in IN_LISTENER:
            self._leave_to_listener(step)
        else:
            self._actions[step]()

    @property
    def _actions(self) -> dict[Step, Callable[[], object]]:
        caller = self._caller
        return {
            Step.ROW_EVENT: self._row_event,
            Step.EVENT_ROW: self._event_row,
            Step.OBJECT_EVENT: self._object_event,
            Step.EVENT_OBJECT: self._event_object,
            Step.BEGIN: self._begin,
            Step.RELEASE: self._release,
            Step.UNDO: self._undo,
            Step.COMMIT: self.commit,
            Step.ROLLBACK: self.rollback,
            Step.READ: lambda: caller.execute("SELECT 1"),
            Step.FLUSH: lambda: caller.call("flush"),
            Step.CANCEL: caller.cancel,
            Step.PREPARE: self._prepare,
            Step.FAIL_IN_SAVEPOINT: self._fail_in_savepoint,
            Step.SWALLOW: self._fail_by_statement,
            Step.SWALLOW_FLUSH: self._fail_by_flush,
            Step.DRIVER_ROLLBACK: self._roll_back_driver,
            Step.DRIVER_COMMIT: self._commit_driver,
            Step.UNDONE_BY_HAND: lambda: caller.undo_by_hand(self._lost_row_event),
            Step.UNDONE_IN_BLOCK: lambda: self._undo_in_block(self._lost_row_event),
            Step.FAILED_IN_BLOCK: lambda: self._undo_in_block(self._lost_event_of_failure),
            Step.WRITTEN_IN_BLOCK: lambda: self._undo_in_block(caller.cancel),
        }

    def _undo_in_block(self, action: Callable[[], None]) -> None:
        """Objects flushed in the block are lost with it: their session does not keep them."""
        session = self._caller.sync_session if self._caller.session is not None else None
        pending = {each.id for each in getattr(session, "new", ())}
        self._caller.undo_in_block(action)
        self._book.doubt(pending)

    def _pair(self) -> Pair:
        number = next(self._numbers)
        is_apart = self._is_committed_at_once and self._caller.is_in_other(number)
        stays = self._is_ended and self._case.driver is Driver.ASYNCPG
        pair = Pair(number=number, row_is_apart=is_apart, row_is_free=stays, row_may_stay=stays)
        self._book.enter(pair)
        return pair

    def _row_event(self) -> None:
        pair = self._pair()
        self._caller.write(pair.number)
        pair.row_is_free |= self._is_committed_at_once
        self._add(pair)

    def _event_row(self) -> None:
        pair = self._pair()
        self._add(pair)
        self._caller.write(pair.number)

    def _object_event(self) -> None:
        pair = self._pair()
        self._caller.add_object(pair.number)
        self._add(pair)

    def _event_object(self) -> None:
        pair = self._pair()
        self._add(pair)
        self._caller.add_object(pair.number)
        self.objects_after_events.append(pair)

    @property
    def _is_committed_at_once(self) -> bool:
        """Whether a row is committed alone, before its event can be refused."""
        return self._case.isolation is Isolation.AUTOCOMMIT

    def _add(self, pair: Pair, *, as_listener: bool = False) -> None:
        add = self._caller.add_event_as_listener if as_listener else self._caller.add_event
        try:
            add(pair.number)
        except Exception:
            # The owner of the connection may still commit.
            pair.row_is_free |= self._case.mode.is_shared
            raise
        pair.accepted = True

    def _begin(self) -> None:
        self._caller.begin_nested()
        self._book.begin()

    def _release(self) -> None:
        if self._caller.savepoints:
            self._caller.release()
            self._book.release()

    def _undo(self) -> None:
        if self._caller.savepoints:
            # A row that a listener writes after this is outside of the savepoint.
            self._book.undo()
            self._caller.undo()

    def _prepare(self) -> None:
        if self._case.mode.is_two_phase:
            pair = self._pair()
            self._caller.write(pair.number)
            pair.row_is_free |= self._is_committed_at_once
            self._caller.prepare()
            self._add(pair)

    def _fail_in_savepoint(self) -> None:
        self._begin()
        self._row_event()
        with suppress(IntegrityError):
            self._caller.write_taken()
        self._undo()

    def _fail_by_statement(self) -> None:
        with suppress(IntegrityError):
            self._caller.write_taken()
        self._book.failed = True

    def _fail_by_flush(self) -> None:
        self._caller.session.add(Order(id=TAKEN))
        with suppress(IntegrityError):
            self._caller.call("flush")
        self._book.failed = True

    def _roll_back_driver(self) -> None:
        self._book.lose()
        self._is_ended = True
        for pair in self._book.pairs if self._case.driver is Driver.ASYNCPG else ():
            # The pair's object may still be flushed, which commits it.
            pair.row_may_stay = pair.row_is_free = True
        self._caller.end_driver("rollback")

    def _commit_driver(self) -> None:
        """Rows stay, waiting events do not, and the commit of their session is refused."""
        self._book.lose()
        self._is_ended = True
        for pair in self._book.pairs:
            pair.row_may_stay = pair.row_is_free = True
        for pair in self.objects_after_events:
            # Its event was executed at once, so it is committed.
            pair.row_is_dropped = True
        self._caller.end_driver("commit")

    def _lost_row_event(self) -> None:
        """Write a pair that is undone without SQLAlchemy."""
        self._row_event()
        self._book.pairs[-1].fate = Fate.EITHER

    def _lost_event_of_failure(self) -> None:
        """Write such a pair with a failed statement between row and event."""
        pair = self._pair()
        pair.fate = Fate.EITHER
        self._caller.write(pair.number)
        pair.row_is_free |= self._is_committed_at_once
        with suppress(IntegrityError):
            self._caller.write_taken()
        self._add(pair)

    def _leave_to_flush(self, step: Step) -> None:
        """Let a listener add an event when the row is flushed."""
        pair = self._pair()
        pair.row_is_free |= self._is_committed_at_once and step is not Step.BEFORE_FLUSH
        self._in_flush[pair.number] = (IN_FLUSH[step], pair)
        self._caller.add_object(pair.number)

    def _leave_to_listener(self, step: Step) -> None:
        """Let a listener add an event; the listener also writes the row where it can."""
        caller = self._caller
        is_late = step in {Step.AFTER_COMMIT, Step.AFTER_ROLLBACK}
        written = self._pair() if is_late else None
        if written is not None:
            # The commit precedes the call of `add`, and cannot be undone.
            written.row_is_free = True
            caller.write(written.number)

        def act() -> None:
            pair = written or self._pair()
            if step in {Step.ROW_BEFORE_COMMIT_LAST, Step.AFTER_SOFT_ROLLBACK}:
                caller.sync_session.execute(caller.insert(pair.number))
                pair.row_is_free |= self._is_committed_at_once
            elif not is_late:
                caller.sync_session.add(caller.row_of(pair.number)(id=pair.number))
            self._add(pair, as_listener=True)

        self._in_listener.setdefault(IN_LISTENER[step], []).append(act)

    def _hear(self, name: str) -> None:
        """Run the actions that were left to a listener, once."""
        for act in self._in_listener.pop(name, []):
            act()
        if name in {"before_flush", "after_flush"}:
            self._hear_of_objects(name)
        elif name == "after_flush_postexec":
            flushed, self._flushed = self._flushed, []
            for pair in flushed:
                self._add(pair, as_listener=True)

    def _hear_of_objects(self, name: str) -> None:
        for each in list(self._caller.sync_session.new):
            when, pair = self._in_flush.get(each.id, ("", None))
            if pair is None or (when == "before_flush") is not (name == "before_flush"):
                continue
            del self._in_flush[each.id]
            if when == "after_flush_postexec":
                # The session has no new objects at that point.
                self._flushed.append(pair)
            else:
                self._add(pair, as_listener=True)

    def commit(self) -> None:
        self._caller.call("commit")
        self._caller.savepoints.clear()
        if self._case.mode.is_shared:
            self._book.leave()
        else:
            self._book.end(Fate.KEPT)

    def rollback(self) -> None:
        # What a shared session rolls back depends on how it joined.
        self._book.end(Fate.EITHER if self._case.mode.is_shared else Fate.GONE)
        self._caller.call("rollback")
        if self._caller.savepoints:
            # The session reports the end of the innermost transaction before the ends of the outer
            # ones.
            self._book.end(Fate.EITHER)
        self._caller.savepoints.clear()
