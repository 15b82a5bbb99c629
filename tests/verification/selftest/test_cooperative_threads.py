"""Tests that cooperative threads run one at a time, whichever is quicker."""

from __future__ import annotations

from functools import partial

import pytest

from tests.verification.simulation.cooperative_threads import CooperativeThreads


def test_a_thread_runs_only_while_it_is_waited_for() -> None:
    threads, said = CooperativeThreads(), []

    def count() -> None:
        for number in range(3):
            said.append(number)
            threads.running.pause()

    one, other = threads.start(count), threads.start(count)
    assert said == [0, 0]
    one.resume()
    other.resume()
    one.resume()
    assert said == [0, 0, 1, 1, 2]
    one.resume()
    assert (one.is_done, other.is_done) == (True, False)
    other.resume()
    other.resume()
    threads.close()


def test_exception_of_a_thread_is_raised_where_it_is_awaited() -> None:
    threads = CooperativeThreads()
    with pytest.raises(ZeroDivisionError):
        threads.start(lambda: 1 / 0)
    threads.close()


def test_threads_are_reused_and_end_in_any_timing() -> None:
    for _ in range(300):
        threads, done = CooperativeThreads(), []
        for number in range(4):
            threads.start(partial(done.append, number))
        assert done == [0, 1, 2, 3]
        assert len(threads.idle) == 1
        threads.close()
