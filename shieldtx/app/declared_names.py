"""What the declarations of a service name: event types, groups and topics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from shieldtx.app.declarations import Declarations
from shieldtx.app.event_catalog import event_catalog
from shieldtx.catalog.catalog import Catalog
from shieldtx.consumer.handlers import ConsumerGroup
from shieldtx.domain.states import TxKind
from shieldtx.settings.settings import Settings


class DeclaredNames(ABC):
    """A part of ShieldTx, which sets the attribute: applications call these methods on it."""

    _declarations: Declarations

    @property
    @abstractmethod
    def settings(self) -> Settings:
        """The settings; raises ConfigurationError for those that the environment lacks."""

    def catalog(self) -> Catalog:
        """Return the declared events with the schemas of their payloads.

        Raises ConfigurationError for a payload type without a JSON Schema.
        """
        return event_catalog(self.settings, self._declarations)

    @property
    def groups(self) -> Mapping[str, ConsumerGroup]:
        """The consumer groups that the service has declared, by name."""
        return self._declarations.groups

    def topics(self) -> list[str]:
        """Return the broker's names of all topics that this service writes or reads, sorted."""
        return self._declarations.topics()

    def topics_written(self) -> list[str]:
        """Return the broker's names of the topics to which this service publishes, sorted."""
        return self._declarations.topics_written()

    def of_unknown_types(self) -> list[tuple[str, str]]:
        """Return the functions for event types that nothing declares, each with its type."""
        return self._declarations.of_unknown_types()

    def foreign_topics(self) -> list[str]:
        """Return the names of the foreign topics that this service reads, sorted."""
        return self._declarations.foreign_topics()

    def topics_of(self, group: str) -> list[str]:
        """Return the broker's names of the topics that a group reads; raises ConfigurationError."""
        return self._declarations.topics_of(group)

    def group_id(self, group: str) -> str:
        """Return the broker's name of a consumer group."""
        return self._declarations.group_id(group)

    def handled_by(self, group: str) -> AbstractSet[tuple[str, TxKind]]:
        """Return the event types and kinds for which a group has handlers in this application."""
        return self._declarations.handled_by(group)
