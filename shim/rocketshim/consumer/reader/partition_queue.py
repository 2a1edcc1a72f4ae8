"""The queue of an assigned partition, and what a listener thread takes from it: concurrent or orderly consumption."""

from typing import Any, TypeVar

from rocketshim.core.orderly_partition import OrderlyPartition, OrderlyTask
from rocketshim.core.process_queue import Chunk, ProcessQueue

__all__ = ["PartitionQueue", "QueueT", "Work"]

PartitionQueue = ProcessQueue[Any] | OrderlyPartition
Work = Chunk[Any] | OrderlyTask
QueueT = TypeVar("QueueT", bound=PartitionQueue)
