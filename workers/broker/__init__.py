"""The broker worker: owns partitions, and speaks Kafka's protocol."""
