"""What the tests share: a real Kafka broker, members of every client, Java programs, and the behaviours table."""
