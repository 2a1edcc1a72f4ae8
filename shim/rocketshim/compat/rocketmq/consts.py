"""`rocketmq.consts` of `rocketmq-client-python` 2.0: the names of RocketMQ's own properties."""

from enum import Enum

__all__ = ["MessageProperty"]


class MessageProperty(Enum):
    """A property for `ReceivedMessage.get_property`; `b""` where a message on Kafka does not have it."""

    BUYER_ID = "BUYER_ID"
    CONSUME_START_TIMESTAMP = "CONSUME_START_TIME"
    CORRECTION_FLAG = "CORRECTION_FLAG"
    DELAY_TIME_LEVEL = "DELAY"
    KEYS = "KEYS"
    MAX_OFFSET = "MAX_OFFSET"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    MIN_OFFSET = "MIN_OFFSET"
    MQ2_FLAG = "MQ2_FLAG"
    MSG_REGION = "MSG_REGION"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    PRODUCER_GROUP = "PGROUP"
    REAL_QUEUE_ID = "REAL_QID"
    REAL_TOPIC = "REAL_TOPIC"
    RECONSUME_TIME = "RECONSUME_TIME"
    RETRY_TOPIC = "RETRY_TOPIC"
    TAGS = "TAGS"
    TRACE_SWITCH = "TRACE_ON"
    TRANSACTION_PREPARED = "TRAN_MSG"
    TRANSFER_FLAG = "TRANSFER_FLAG"
    UNIQ_CLIENT_MESSAGE_ID_KEYIDX = "UNIQ_KEY"
    WAIT_STORE_MSG_OK = "WAIT"
