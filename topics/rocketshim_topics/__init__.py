"""The contract on the cluster: topic names, wire format, delay levels, group-log records, topic layout."""
