"""rocketshim: RocketMQ's consumption semantics on plain Apache Kafka, from the client side."""
