"""Try other versions of Kafka, of Python and of the packages, and write docs/compatibility.md from the results."""
