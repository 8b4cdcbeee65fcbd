"""Benchmarks, always as a ratio to Kafka in the same run."""
