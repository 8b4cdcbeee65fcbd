"""Who a client is, and what it may do: SASL, SCRAM credentials, ACLs."""
