"""Half messages: prepared before a local transaction, and sent or discarded as that one ends."""
