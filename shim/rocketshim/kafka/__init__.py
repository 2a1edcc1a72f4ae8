"""Our side of confluent_kafka: clients, configuration, errors, positions, rights, reading a topic."""
