"""The assignors of the embedded broker for consumer groups (KIP-848)."""
