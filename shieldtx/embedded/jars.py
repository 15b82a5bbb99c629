"""The jars of Apache Kafka and of PostgreSQL's JDBC driver: fetched once, pinned, cached.

The Ivy inside PySpark fetches them. Every jar must have the SHA-256 that the file `<name>.sha256`
next to this module lists, and no other jar may be among them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from shieldtx.embedded.child_process import ChildProcess
from shieldtx.embedded.directories import exclusive
from shieldtx.embedded.requirements import (
    INSTALL_EXTRA,
    DownloadFailed,
    RequirementMissing,
    require_java,
    require_package,
)

KAFKA_VERSION: Final = "4.3.1"
JDBC_VERSION: Final = "42.7.14"
_STALLED_S: Final = 120.0
_PROGRESS_S: Final = 1.0

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A module in Maven's terms; with `needs`, its dependencies are fetched as well."""

    organisation: str
    module: str
    version: str
    needs: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """Jars that are fetched together; `name` is their folder in the cache."""

    name: str
    title: str
    artifacts: tuple[Artifact, ...]

    def checksums(self) -> dict[str, str]:
        """Return the pinned SHA-256 by file name."""
        listing = Path(__file__).with_name(f"{self.name}.sha256").read_text(encoding="ascii")
        pairs = (line.split() for line in listing.splitlines())
        return {file: digest for digest, file in pairs}


KAFKA: Final = Bundle(
    name=f"kafka-{KAFKA_VERSION}",
    title=f"Apache Kafka {KAFKA_VERSION}",
    artifacts=(
        Artifact(
            organisation="org.apache.kafka",
            module="kafka_2.13",
            version=KAFKA_VERSION,
            needs=True,
        ),
        # Kafka depends only on the interface of slf4j: without a backend its log would be lost.
        Artifact(organisation="org.slf4j", module="slf4j-simple", version="1.7.36"),
    ),
)
JDBC_DRIVER: Final = Bundle(
    name=f"postgresql-{JDBC_VERSION}",
    title=f"PostgreSQL's JDBC driver {JDBC_VERSION}",
    artifacts=(Artifact(organisation="org.postgresql", module="postgresql", version=JDBC_VERSION),),
)


def fetch_kafka(cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the folder with Apache Kafka's jars, fetched (44 MB) if they are not cached.

    `cache` defaults to $SHIELDTX_CACHE or ~/.cache/shieldtx. The jars come from Maven Central, or
    from the repository (a mirror) of the Ivy settings file $SHIELDTX_IVY_SETTINGS. Raises
    RequirementMissing without Java or PySpark, DownloadFailed when the jars cannot be fetched.
    """
    return _fetch(KAFKA, cache or default_cache(), progress or _silent)


def fetch_jdbc_driver(cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the jar of PostgreSQL's JDBC driver; cache and errors as in `fetch_kafka`."""
    folder = _fetch(JDBC_DRIVER, cache or default_cache(), progress or _silent)
    return folder / f"postgresql-{JDBC_VERSION}.jar"


def default_cache() -> Path:
    """Return $SHIELDTX_CACHE, or ~/.cache/shieldtx when it is not set."""
    chosen = os.environ.get("SHIELDTX_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "shieldtx"


def _fetch(bundle: Bundle, cache: Path, progress: Progress) -> Path:
    """Return the bundle's folder, verified; one rename moves it into the cache."""
    cache = cache.resolve()
    folder = cache / bundle.name
    if not _defects(bundle, folder):
        return folder
    cache.mkdir(parents=True, exist_ok=True)

    def tell_wait() -> None:
        progress(f"{bundle.title}: waiting for another process that is fetching it")

    with exclusive(cache / f"{bundle.name}.lock", on_wait=tell_wait):
        if not _defects(bundle, folder):
            return folder
        for left in (folder, *cache.glob(f".{bundle.name}.*.part")):
            shutil.rmtree(left, ignore_errors=True)
        part = Path(tempfile.mkdtemp(prefix=f".{bundle.name}.", suffix=".part", dir=cache))
        log = cache / f"{bundle.name}.log"
        try:
            _download(bundle, part, log, progress)
            if defects := _defects(bundle, part / "jars"):
                raise DownloadFailed(
                    f"{bundle.title} could not be fetched: {defects[0]} ({len(defects)} of its"
                    f" files are concerned). Is the network there? Details are in {log}"
                )
            (part / "jars").rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    progress(f"{bundle.title}: {len(bundle.checksums())} jars in {folder}")
    return folder


def _defects(bundle: Bundle, folder: Path) -> list[str]:
    """Return what is wrong with a folder of jars; [] if it has exactly the pinned jars."""
    pinned = bundle.checksums()
    present = {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}
    missing = [f"{name} is missing" for name in pinned if name not in present]
    foreign = [f"{name} is not expected" for name in present if name not in pinned]
    altered = [
        f"{name} has another checksum than the pinned one"
        for name, digest in pinned.items()
        if name in present and _sha256(present[name]) != digest
    ]
    return [*altered, *foreign, *missing]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(bundle: Bundle, part: Path, log: Path, progress: Progress) -> None:
    """Let Ivy put the jars into `part`/jars; its own cache is in `part` too, not in ~/.ivy2."""
    module = part / "ivy.xml"
    _write_ivy_module(bundle, module)
    log.unlink(missing_ok=True)
    settings = os.environ.get("SHIELDTX_IVY_SETTINGS")
    ivy = ChildProcess.start(
        [
            require_java(),
            f"-Divy.default.ivy.user.dir={part / 'ivy'}",
            *("-cp", _ivy_jar(), "org.apache.ivy.Main", "-ivy", module, "-confs", "default"),
            *("-types", "jar", "bundle", "-cache", part / "ivy"),
            *(("-settings", settings) if settings else ()),
            *("-retrieve", f"{part}/jars/[artifact]-[revision](-[classifier]).[ext]"),
        ],
        name="Ivy",
        log=log,
    )
    try:
        _watch_download(ivy, bundle, part, log, progress)
    finally:
        ivy.kill()


def _watch_download(
    ivy: ChildProcess, bundle: Bundle, part: Path, log: Path, progress: Progress
) -> None:
    arrived, moved_on = -1, time.monotonic()
    while not ivy.wait(_PROGRESS_S):
        files = _sizes(part / "ivy")
        if sum(files.values()) != arrived:
            arrived, moved_on = sum(files.values()), time.monotonic()
            progress(f"{bundle.title}: {_stage(bundle, files)}")
        if time.monotonic() - moved_on > _STALLED_S:
            raise DownloadFailed(
                f"{bundle.title}: nothing has arrived for {_STALLED_S:.0f} s"
                f" ({_stage(bundle, files)}). Is the network there? Details are in {log}"
            )


def _sizes(folder: Path) -> dict[Path, int]:
    sizes = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # Ivy has just renamed it
            if path.is_file():
                sizes[path] = path.stat().st_size
    return sizes


def _stage(bundle: Bundle, files: Mapping[Path, int]) -> str:
    """Return Ivy's progress, from the sizes in bytes of the files in its cache."""
    jars = [path for path in files if path.suffix == ".jar"]
    if not jars:
        modules = sum(path.name.startswith("ivy-") and path.suffix == ".xml" for path in files)
        return f"looking up what it consists of, {modules} modules so far"
    # Ivy names unfinished files *.jar.part.
    size = sum(size for path, size in files.items() if ".jar" in path.suffixes)
    return f"{len(jars)} of {len(bundle.checksums())} jars, {size / 1e6:.1f} MB"


def _write_ivy_module(bundle: Bundle, path: Path) -> None:
    module = ET.Element("ivy-module", version="2.0")
    ET.SubElement(module, "info", organisation="shieldtx", module=bundle.name)
    ET.SubElement(ET.SubElement(module, "configurations"), "conf", name="default")
    dependencies = ET.SubElement(module, "dependencies")
    for artifact in bundle.artifacts:
        ET.SubElement(
            dependencies,
            "dependency",
            org=artifact.organisation,
            name=artifact.module,
            rev=artifact.version,
            # Maven's scopes: `master` is only the jar, `default` includes its run-time
            # dependencies.
            conf="default->default" if artifact.needs else "default->master",
        )
    ET.ElementTree(module).write(path, encoding="utf-8", xml_declaration=True)


def _ivy_jar() -> Path:
    jars = sorted((require_package("pyspark") / "jars").glob("ivy-*.jar"))
    if not jars:
        raise RequirementMissing(f"the installed PySpark holds no Ivy: {INSTALL_EXTRA}")
    return jars[-1]


def _silent(_message: str) -> None:
    """Ignore the progress."""
