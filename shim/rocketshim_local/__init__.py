"""A real Apache Kafka on this machine, for development, demonstrations and tests."""

from rocketshim_local.broker import Broker, any_broker
from rocketshim_local.cache import cache_dir
from rocketshim_local.cluster import LocalCluster
from rocketshim_local.jars import KAFKA_VERSION, cached_jars, fetch_jars
from rocketshim_local.java import JavaRuntime, find_java
from rocketshim_local.prepare import prepare

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
