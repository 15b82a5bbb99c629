"""Half-message clients in forks of a process that has used the application."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

from tests.verification.faults.bank import half_message_clients
from tests.verification.faults.bank.half_message_clients import ClientRun

SESSION = "session-{server_process}-{process}"
"""The name of the file in which a process notes its session with the server."""


def work(client_run: ClientRun, processes: int) -> None:
    """Use the application, and let forked processes make the transfers at the same time."""
    from tests.verification.faults.bank.upstream import ledger, shield

    shield.schema.check()
    with ledger.connect() as connection:
        connection.exec_driver_sql("SELECT 1")
    forks = multiprocessing.get_context("fork")
    children = [
        forks.Process(
            target=half_message_clients.work,
            args=(replace(client_run, name=f"{client_run.name}-{number}"),),
        )
        for number in range(processes)
    ]
    for child in children:
        child.start()
    shield.schema.check()
    for child in children:
        child.join()
    if any(child.exitcode for child in children):
        raise SystemExit(f"clients ended: {[child.exitcode for child in children]}")
    shield.schema.check()
    shield.close()


def note_sessions(folder: str, processes: int) -> None:
    """Use the application here and in forked processes, one after the other."""
    forks = multiprocessing.get_context("fork")
    _note_session(folder)
    for _ in range(processes):
        child = forks.Process(target=_note_session, args=(folder,))
        child.start()
        child.join()


def _note_session(folder: str) -> None:
    from tests.verification.faults.bank.upstream import shield

    with shield.engine.connect() as connection:
        server_process = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    (Path(folder) / SESSION.format(server_process=server_process, process=os.getpid())).touch()
