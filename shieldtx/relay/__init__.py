"""The relay: claims events from the outbox, publishes them, settles them."""
