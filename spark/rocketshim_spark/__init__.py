"""PySpark batch jobs over rocketshim's topics: find failures and lost messages, and replay dead letters."""
