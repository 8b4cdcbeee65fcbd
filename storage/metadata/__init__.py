"""KRaft metadata records: topic ids, configs and deletions out of a broker's own log."""
