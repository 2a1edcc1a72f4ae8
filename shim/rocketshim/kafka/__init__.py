"""Our side of confluent_kafka: clients, configuration, errors, committed positions, ACLs, reading a topic."""
