"""The broker: two topics of one partition each, and records that arrive late."""

from __future__ import annotations

from collections.abc import Iterator

from tests.verification.model.state import FORGER, TOPICS, Event, State, Step, put


def actions(state: State) -> Iterator[Step]:
    """Yield the steps without a process: late records arrive, and rollbacks are forged."""
    if state.flying:
        event, *others = state.flying
        landed = append(state._replace(flying=tuple(others)), event)
        yield f"the record of {event} lands late", landed
    if state.faults:
        for row in state.services[0].rows:
            forged = append(state, Event(row.event.number, FORGER))
            yield f"a foreign client forges a rollback of {row.event}", forged.after_fault()


def append(state: State, event: Event) -> State:
    """Put a record on its topic."""
    place = TOPICS.index(event.kind)
    topics = put(state.topics, place, (*state.topics[place], event))
    return _seen(state._replace(topics=topics), event)


def _seen(state: State, event: Event) -> State:
    """Note at its outbox row that the event has been on the topic."""
    for number, service in enumerate(state.services):
        for place, row in enumerate(service.rows):
            if row.event == event and not row.published:
                rows = put(service.rows, place, row._replace(published=True))
                return state.with_service(number, service._replace(rows=rows))
    return state


def without_read_records(state: State) -> State:
    """Drop the records that every group has committed: no step can read them any more."""
    topics, groups = state.topics, state.groups
    for place, records in enumerate(topics):
        readings = [group.readings[place] for group in groups]
        done = min((r.committed for r in readings if r is not None), default=0)
        if not done:
            continue
        topics = put(topics, place, records[done:])
        groups = tuple(
            group
            if (r := group.readings[place]) is None
            else group._replace(
                readings=put(
                    group.readings,
                    place,
                    r._replace(position=r.position - done, committed=r.committed - done),
                )
            )
            for group in groups
        )
    return state if topics is state.topics else state._replace(topics=topics, groups=groups)
