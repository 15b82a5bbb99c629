"""Half messages: prepared before a local transaction, and sent or discarded by its outcome."""
