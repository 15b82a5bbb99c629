"""The migration scripts of shieldtx: the revisions, and the steps between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from alembic.runtime.migration import RevisionStep
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError

from shieldtx._resources import resource_folder
from shieldtx.errors import ConfigurationError
from shieldtx.store.online import OnlineChange

BASE: Final = "base"
"""The name of the state in which there are no tables."""


class MigrationScripts:
    """The scripts that this release contains."""

    def __init__(self) -> None:
        self._directory = ScriptDirectory(str(resource_folder("migrations")))

    @property
    def newest(self) -> str | None:
        """The revision that this release needs."""
        return self._directory.get_current_head()

    def __contains__(self, revision: str | None) -> bool:
        return any(script.revision == revision for script in self._directory.walk_revisions())

    def steps_up(self, current: str | None, revision: str) -> list[RevisionStep]:
        """Return the scripts from the `current` revision up to `revision`, in order.

        Raises ConfigurationError for an unknown or lower revision.
        """
        with self._path(current, revision):
            path = list(self._directory.iterate_revisions(revision, current, implicit_base=True))
        revisions = self._directory.revision_map
        return [RevisionStep(revisions, script, is_upgrade=True) for script in reversed(path)]

    def steps_down(self, current: str | None, revision: str) -> list[RevisionStep]:
        """Return the scripts from the `current` revision down to `revision`, in order.

        Raises ConfigurationError for an unknown or higher revision.
        """
        if revision in self and revision not in self._up_to(current):
            raise ConfigurationError(
                f"no way down from revision {current} to {revision}, which is not older"
            )
        with self._path(current, revision):
            path = list(
                self._directory.iterate_revisions(current, revision, select_for_downgrade=True)
            )
        revisions = self._directory.revision_map
        return [RevisionStep(revisions, script, is_upgrade=False) for script in path]

    def online_changes(self, revision: str | None) -> tuple[OnlineChange, ...]:
        """Return the changes that a revision makes outside of its transaction, in order."""
        script = self._directory.get_revision(revision) if revision else None
        return getattr(script.module, "ONLINE", ()) if script else ()

    def _up_to(self, current: str | None) -> set[str]:
        """Return a revision and all older ones."""
        older = self._directory.iterate_revisions(current, BASE)
        return {script.revision for script in older}

    @contextmanager
    def _path(self, current: str | None, revision: str) -> Iterator[None]:
        if not revision:
            raise ConfigurationError(f"there is no revision {revision!r} (newest: {self.newest})")
        try:
            yield
        # Alembic asserts that an empty name and steps from the newest revision lead somewhere.
        except (RevisionError, CommandError, AssertionError) as error:
            if isinstance(error, AssertionError) or not self._has(revision):
                raise ConfigurationError(
                    f"there is no revision {revision or repr('')} (newest: {self.newest})"
                ) from error
            raise ConfigurationError(
                f"no way from revision {current or BASE} to {revision}: {error}"
            ) from error

    def _has(self, revision: str) -> bool:
        """Whether a revision exists; also true for a relative one, such as `+1`."""
        known = [script.revision for script in self._directory.walk_revisions()]
        return not revision.isalnum() or any(each.startswith(revision) for each in known)
