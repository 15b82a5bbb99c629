"""Tests of the processes of the banks, from the view of a caller that waits for their end."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.verification.faults.workers import Worker

ROUNDS = 20
THREADS = 8


def test_exit_status_of_a_process_is_returned_to_each_caller(tmp_path: Path) -> None:
    statuses = set()

    def ask(worker: Worker) -> None:
        while (status := worker.exit_status) is None:
            pass
        statuses.add(status)

    for number in range(ROUNDS):
        log = tmp_path / f"{number}.log"
        worker = Worker.function("nothing", print, "done", environment={}, log=log)
        asking = [threading.Thread(target=ask, args=[worker]) for _ in range(THREADS)]
        for thread in asking:
            thread.start()
        worker.finish()
        for thread in asking:
            thread.join()
    assert statuses == {0}
