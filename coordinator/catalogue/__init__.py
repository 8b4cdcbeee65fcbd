"""What the cluster knows of topics, partitions, settings and clients: kept in Kafka's records, changed here, told to brokers."""
