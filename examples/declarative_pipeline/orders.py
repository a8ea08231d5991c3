"""A declarative pipeline of Spark: each record of topic `orders` goes to one of two topics, once.

A flow appends to a sink of format `txnlog`. Each run of the pipeline is one transaction: records in
both topics, and the offsets of group `checking`. So a run that was killed, a flow that Spark starts
again and a full refresh neither repeat nor lose a record.

    pip install 'txnlog[spark]' 'pyspark[pipelines]'
    spark-pipelines run    # in this folder, with your places in spark-pipeline.yml
"""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
cluster = {"txnlog.root": spark.conf.get("spark.orders.root"), "group.id": "checking"}

dp.create_sink("checked_orders", "txnlog", cluster)


@dp.append_flow(target="checked_orders")
def check_orders() -> DataFrame:
    """Records whose value is a JSON object with an amount, and the others."""
    orders = (
        spark.readStream.format("txnlog")
        .options(**cluster, subscribe="orders")
        # A full refresh has a new checkpoint, and continues at the offsets of the group.
        .option("startingOffsets", "committed")
        .option("auto.offset.reset", "earliest")
        .load()
    )
    amount = "try_cast(get_json_object(string(value), '$.amount') as double)"
    return orders.selectExpr(
        "key", "value", f"if({amount} is null, 'orders.refused', 'orders.checked') as topic"
    )
