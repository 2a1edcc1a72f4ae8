"""PySpark batch jobs over the topics of rocketshim: what failed, why, is anything lost, what to send again."""
