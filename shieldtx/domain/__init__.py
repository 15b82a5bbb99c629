"""The domain: events, states, retries, due times, payloads, event types."""
