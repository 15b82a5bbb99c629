"""Tokens of processes, and the proof that a process has died."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from shieldtx import _process_tokens as tokens
from shieldtx._process_tokens import (
    has_died,
    name_with_token,
    owner_has_died,
    process_token,
)

MAKE = (
    "import sys; from shieldtx._process_tokens import process_token; "
    "print(process_token(), flush=True); sys.stdin.read()"
)
ASK = (
    "import sys; from uuid import UUID; from shieldtx._process_tokens import has_died; "
    "print(has_died(UUID(sys.argv[1])))"
)


@contextmanager
def maker(*before: str) -> Iterator[tuple[subprocess.Popen[str], UUID]]:
    """Run a process that prints a token and waits."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", MAKE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, UUID(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


def test_tokens_of_a_process_differ_and_it_lives() -> None:
    made = {process_token() for _ in range(1000)}
    assert len(made) == 1000
    assert {token.version for token in made} == {8}
    assert {token.variant for token in made} == {uuid4().variant}
    assert not any(map(has_died, made))


def test_another_living_process_has_not_died() -> None:
    with maker() as (_, token):
        assert not has_died(token)


def test_a_stopped_process_has_not_died() -> None:
    with maker() as (process, token):
        process.send_signal(signal.SIGSTOP)
        assert not has_died(token)


def test_a_killed_process_has_died_awaited_or_not() -> None:
    with maker() as (process, token):
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert has_died(token), "it is a zombie"
        process.wait()
        assert has_died(token)


def test_a_reused_process_id_means_that_the_first_has_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with maker() as (_, token):
        stat = tokens._stat

        def of_a_later_process(process: str) -> tokens._Stat | None:
            found = stat(process)
            return None if found is None else found._replace(start=found.start + 1)

        monkeypatch.setattr(tokens, "_stat", of_a_later_process)
        assert has_died(token)


def test_a_process_that_proc_hides_has_not_died(monkeypatch: pytest.MonkeyPatch) -> None:
    with maker() as (_, token):
        monkeypatch.setattr(tokens, "_stat", lambda _: None)
        assert not has_died(token)


def test_a_dead_process_of_another_boot_or_namespace_is_unknown() -> None:
    with maker() as (process, token):
        pass
    assert has_died(token)
    for bit in (80, 100, 127):
        assert not has_died(UUID(int=token.int ^ 1 << bit)), f"bit {bit} is of the host"
    assert process.returncode == -signal.SIGKILL


def test_a_token_of_a_random_process_is_unknown() -> None:
    assert not has_died(uuid4())
    assert not owner_has_died(f"host-4711-{uuid4().hex}")
    assert not owner_has_died("relay-1")
    assert not owner_has_died("host-4711-0f3c9a1b")


def test_a_name_keeps_its_token_when_it_is_renamed() -> None:
    assert not owner_has_died(name_with_token("host-1"))
    with maker() as (process, token):
        pass
    assert process.returncode
    assert owner_has_died(f"my-host-1-{token.hex}")
    assert owner_has_died(f"my-host-1-{token.hex}+12")


@pytest.mark.parametrize("missing", ["self", "sys/kernel/random/boot_id", "self/ns/pid"])
def test_unreadable_identity_gives_random_tokens(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc, pid = tmp_path / "proc", str(os.getpid())
    (proc / pid / "ns").mkdir(parents=True)
    shutil.copy("/proc/self/stat", proc / pid / "stat")
    (proc / pid / "ns" / "pid").symlink_to("pid:[4026531836]")
    (proc / "self").symlink_to(pid)
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("0b6e\n")
    monkeypatch.setattr(tokens, "_PROC", proc)
    monkeypatch.setattr(tokens, "_process", tokens._process.__wrapped__)
    assert process_token().version == 8
    with maker() as (_, dead):
        pass
    (proc / missing).unlink()
    assert process_token().version == 4
    assert not has_died(dead)


def test_proc_of_another_namespace_gives_random_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sys",):
        (tmp_path / name).symlink_to(f"/proc/{name}")
    (tmp_path / "self").symlink_to("1")
    (tmp_path / "1").symlink_to("/proc/self")
    monkeypatch.setattr(tokens, "_PROC", tmp_path)
    monkeypatch.setattr(tokens, "_process", tokens._process.__wrapped__)
    assert process_token().version == (8 if os.getpid() == 1 else 4)


def unshares() -> bool:
    """Whether this user may make pid namespaces."""
    command = ["unshare", "--pid", "--fork", "true"]
    return bool(shutil.which("unshare")) and not subprocess.run(command, check=False).returncode


@pytest.mark.skipif(not unshares(), reason="needs the right to make pid namespaces")
@pytest.mark.parametrize("proc", [("--mount-proc",), ()], ids=["own-proc", "hosts-proc"])
def test_a_process_in_another_pid_namespace_is_unknown(proc: tuple[str, ...]) -> None:
    inside = ("unshare", "--pid", "--fork", "--kill-child", *proc)
    with maker(*inside) as (_, token):
        # Its process id, 1, is that of a living process here, and the other way round.
        assert not has_died(token)
    assert not has_died(token), "no process of this namespace can know"
    with maker() as (_, outer):
        answer = subprocess.run(
            [*inside, sys.executable, "-c", ASK, str(outer)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert answer.stdout.strip() == "False", "the id of a living process does not exist there"


def test_a_fork_is_another_process() -> None:
    name = tokens.name_with_token("relay")
    assert tokens.is_of_this_process(name)
    assert tokens.is_of_this_process(f"{name}+1")
    assert tokens.is_of_this_process("a name of the application's own")
    child = os.fork()
    if child == 0:
        is_foreign = not tokens.is_of_this_process(name)
        has_own = tokens.is_of_this_process(tokens.name_with_token("relay"))
        os._exit(0 if is_foreign and has_own else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
