"""The demonstration: one day of real flights through delay, retry and dead letters on a real Kafka.

`flights` reads the day and scales it, `consumer_process` is the consumer (a process of its own), `audit` computes the
final table from the records that lie on the topics, `scenario` starts everything, watches, and judges.
"""
