"""Requirements of the embedded servers, and the errors of this package.

::

    ShieldTxError
    └── EmbeddedError               anything that goes wrong with a local server
        ├── RequirementMissing      Java or a Python package is missing; the message names it
        ├── DownloadFailed          the jars could not be fetched or are not the pinned ones
        └── ServerFailed            a process ended or did not answer; the message ends with its log
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from shieldtx.errors import ShieldTxError

JAVA_ANSWER_S: Final = 30.0
INSTALL_EXTRA: Final = "pip install 'shieldtx[embedded]'"


class EmbeddedError(ShieldTxError):
    """A local PostgreSQL or Apache Kafka cannot do what was requested."""


class RequirementMissing(EmbeddedError):
    """A requirement that the user has to install first is missing."""


class DownloadFailed(EmbeddedError):
    """The jars could not be fetched, or are not the ones that this version pins."""


class ServerFailed(EmbeddedError):
    """A started process ended by itself, did not become ready, or could not be ended."""


def require_java(minimum: int = 17) -> Path:
    """Return the `java` that the servers run on: JAVA_HOME's, else the first on PATH.

    Raises RequirementMissing, in one line, without Java or if it is older than `minimum`.
    """
    java = _find_java(minimum)
    found = java_version(java)
    if found is None or found < minimum:
        what = "does not print its version" if found is None else f"is Java {found}"
        raise RequirementMissing(f"{java} {what}: {_install_java(minimum)}")
    return java


def java_version(java: Path) -> int | None:
    """Return the feature release (8, 17, 21, ...) of `java -version`; None if it prints none."""
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own java, no shell
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # "1.8.0_392" is Java 8; from 9 on, the first number is the release: "17.0.15", "21-ea".
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(version.group(1)) if version else None


def require_package(name: str) -> Path:
    """Return the folder of an installed Python package without importing it.

    Raises RequirementMissing when it is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise RequirementMissing(f"the Python package {name} is not installed: {INSTALL_EXTRA}")
    return Path(spec.origin).parent


def _find_java(minimum: int) -> Path:
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise RequirementMissing(
                f"JAVA_HOME is {home}, which has no bin/java: unset it, or {_install_java(minimum)}"
            )
        return java
    on_path = shutil.which("java")
    if on_path is None:
        raise RequirementMissing(f"Java is not installed: {_install_java(minimum)}")
    return Path(on_path)


def _install_java(minimum: int) -> str:
    return (
        f"install Java {minimum} or newer (Debian, Ubuntu: apt-get install "
        f"openjdk-{minimum}-jre-headless) or point JAVA_HOME at one"
    )
