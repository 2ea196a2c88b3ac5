"""One member of one group: its membership, the sequence of a rebalance, heartbeats, commits, and what it is assigned."""
