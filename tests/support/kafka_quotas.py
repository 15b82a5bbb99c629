"""Apache Kafka's quotas, set by the request that its own command line sends."""

from __future__ import annotations

from kafka import KafkaAdminClient
from kafka.protocol.admin import AlterClientQuotasRequest, AlterClientQuotasResponse

RATE = "producer_byte_rate"


def set_producer_quota(bootstrap: str, client_id: str, bytes_per_second: float | None) -> None:
    """Limit what the producers of a client id may send, or (None) lift the limit."""
    request = AlterClientQuotasRequest
    entity = request.EntryData.EntityData(entity_type="client-id", entity_name=client_id)
    op = request.EntryData.OpData(
        key=RATE, value=bytes_per_second or 0.0, remove=bytes_per_second is None
    )
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        # kafka-python has no method for this request.
        manager = admin._manager
        answer: AlterClientQuotasResponse = manager.run(
            manager.send,
            request(entries=[request.EntryData(entity=[entity], ops=[op])], validate_only=False),
        )
    finally:
        admin.close()
    (entry,) = answer.entries
    assert entry.error_code == 0, entry.error_message
