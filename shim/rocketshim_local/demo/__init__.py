"""The demo: one day of real flights goes through delay, retry and dead letters on a real Kafka.

`flights` reads the day and scales it. `consumer_process` is the consumer, which runs in its own process. `audit`
computes the final table from the records on the topics. `scenario` starts everything, shows the progress and checks the
result.
"""
