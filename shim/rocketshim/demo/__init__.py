"""The demonstration: one day of real flights through delay, retry and dead letters on a real Kafka.

`flights` reads the day and scales it, `gate` is the consumer (a process of its own), `ledger` computes the final table
from the records that lie on the topics, `play` starts everything, watches, and judges.
"""
