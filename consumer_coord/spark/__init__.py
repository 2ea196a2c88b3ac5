"""A PySpark Structured Streaming source in which a query is a member of a Kafka consumer group.

    spark.dataSource.register(KafkaGroupSource)
    df = (spark.readStream.format("kafka_group")
          .option("kafka.bootstrap.servers", "broker:9092").option("group.id", "billing").option("subscribe", "orders")
          .load())

Needs the extra ``spark``: ``pip install consumer-coord[spark]``. docs/spark.md is the guide.
"""

import consumer_coord.spark.requirements  # noqa: F401 - first: it says what is missing
from consumer_coord.spark.progress import GroupListener, GroupProgress, progress
from consumer_coord.spark.source import KafkaGroupSource, register
from consumer_coord.spark.user_code import by_value

__all__ = ["GroupListener", "GroupProgress", "KafkaGroupSource", "by_value", "progress", "register"]
