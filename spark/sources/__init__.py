"""The inputs of a run: outboxes, inboxes and topics, and the selection of their rows."""
