"""What every part speaks of: events, states, retries, due times, payloads, event types."""
