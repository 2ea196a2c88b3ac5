"""One member of one group: its membership, rebalances, heartbeats, commits and assignment."""
