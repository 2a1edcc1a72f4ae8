"""The delay-redelivery worker: its loop, its two deliveries and its Kafka clients."""
