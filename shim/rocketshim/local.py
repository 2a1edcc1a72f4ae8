"""The documented name of `rocketshim_local`: a real Apache Kafka on this machine, for development and tests."""

from rocketshim_local import (
    KAFKA_VERSION,
    Broker,
    JavaRuntime,
    LocalCluster,
    any_broker,
    cache_dir,
    cached_jars,
    fetch_jars,
    find_java,
    prepare,
)

__all__ = [
    "KAFKA_VERSION",
    "Broker",
    "JavaRuntime",
    "LocalCluster",
    "any_broker",
    "cache_dir",
    "cached_jars",
    "fetch_jars",
    "find_java",
    "prepare",
]
