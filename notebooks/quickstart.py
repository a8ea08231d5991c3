# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     notebook_metadata_filter: kernelspec,jupytext,-jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # txnlog in ten lines of PySpark
#
# A stream reads the topic `orders` and writes the topics `eu` and `us`. Each micro-batch is one
# transaction: both topics and the source offsets change together, or nothing does. There is no
# broker; all data is in Delta tables below one folder.
#
# Needs Java 17 and a kernel of the project's environment, see `docs/deploying.md`.

# %%
# %load_ext txnlog
import sys
import tempfile
from pathlib import Path

import txnlog

sys.path.append(str(Path(txnlog.__file__).parents[1] / "jobs"))
from spark_session import build_session

folder = Path(tempfile.mkdtemp(prefix="txnlog-quickstart-"))  # or where you like
root = str(folder / "lake")
settings = {"spark.ui.enabled": "false", "spark.sql.warehouse.dir": str(folder / "warehouse")}
spark = build_session("quickstart", settings=settings)
print(spark.version)

# %% [markdown]
# `%load_ext txnlog` lets clusters and topics show themselves (`docs/howto/show.md`), and Spark
# run the Python of this kernel. `build_session` points `SPARK_CONF_DIR` at the project's `conf/`
# (explained line by line in `docs/configuration.md`) and starts `local[2]`. In a job of your own,
# `SparkSession.builder.getOrCreate()` is enough: Spark finds `format("txnlog")` by itself.

# %% [markdown]
# ## A topic
#
# A batch write is a transaction, too. The topic is created with four partitions; rows of one key
# go to one partition, as with Kafka's default partitioner.

# %%
orders = spark.range(1000).selectExpr(
    "CAST(id % 50 AS STRING) AS key",
    "concat(if(id % 3 = 0, 'us', 'eu'), ' order ', id) AS value",
)
orders.write.format("txnlog").option("topic", "orders").mode("append").save(root)

# %% [markdown]
# ## The ten lines
#
# The column `topic` is the topic of a row. `group.id` on source and sink commits the offsets that
# were read in the transaction that writes the rows; `startingOffsets=committed` starts at the
# group's committed offsets.


# %%
def route(checkpoint):
    """Route all available orders, 300 per micro-batch; returns the query."""
    group = {"group.id": "router"}
    start = {"startingOffsets": "committed", "auto.offset.reset": "earliest"}
    source = spark.readStream.format("txnlog").options(subscribe="orders", **group, **start)
    orders = source.option("maxOffsetsPerTrigger", 300).load(root)
    routed = orders.selectExpr("key", "value", "left(CAST(value AS STRING), 2) AS topic")
    sink = routed.writeStream.format("txnlog").options(**group)
    sink = sink.option("checkpointLocation", str(folder / checkpoint)).trigger(availableNow=True)
    query = sink.start(root)
    query.awaitTermination()
    return query


def count(topic):
    """The number of committed records of a topic."""
    return spark.read.format("txnlog").option("subscribe", topic).load(root).count()


route("checkpoint")
assert (count("eu"), count("us")) == (666, 334)

# %% [markdown]
# ## Exactly once
#
# Write the same orders again, then delete the checkpoint, which a streaming job must not lose. With
# Kafka the new query would start from the beginning (duplicates) or at the end (data loss). Here
# it continues from the group's offsets, which are never ahead of the output nor behind it.

# %%
import shutil

orders.write.format("txnlog").option("topic", "orders").mode("append").save(root)
shutil.rmtree(folder / "checkpoint")
route("another-checkpoint")

assert (count("eu"), count("us")) == (1332, 668)

# %% [markdown]
# ## Read it with SQL
#
# `format("txnlog")` has the columns of Spark's Kafka source. A topic is a Delta table as well,
# for every engine that reads Delta; there, the offset is `base_offset + offset_delta`, and
# `txn_status` shows which records are committed.

# %%
spark.sql(f"CREATE TEMP VIEW us USING txnlog OPTIONS (path '{root}', subscribe 'us')")
spark.sql(
    "SELECT partition, offset, timestamp, CAST(key AS STRING), CAST(value AS STRING) "
    "FROM us ORDER BY partition, offset LIMIT 5"
).show(truncate=False)

# %%
plain = spark.sql(f"""
    SELECT partition, base_offset + offset_delta AS offset, key, value
    FROM delta.`{root}/us` WHERE txn_status IN ('none', 'committed')
""")
rows = plain.collect()
assert len(rows) == 668
assert sorted(rows) == sorted(spark.sql("SELECT partition, offset, key, value FROM us").collect())

# %% [markdown]
# `create_views` creates a view for every topic, and for transactions and groups, as of now. Topics
# have the columns of `format("txnlog")`, but are read by Spark's Delta reader. Offsets are dense,
# without gaps for markers or aborted data, so a group's lag is end offset minus committed offset.

# %%
from spark_source.sql import create_views

views = create_views(spark, root)
spark.sql("SELECT GroupId, Topic, Partition, CurrentOffset, Lag FROM __consumer_offsets").show()
assert spark.sql("SELECT sum(Lag) AS lag FROM __consumer_offsets").first().lag == 0
assert spark.table("us").count() == 668

# %%
# Every order is in exactly one of the two topics, as often as it was written: twice.
times = spark.sql(f"""
    SELECT CAST(value AS STRING) AS value, count(*) AS n
    FROM (SELECT * FROM delta.`{root}/eu` UNION ALL SELECT * FROM delta.`{root}/us`)
    WHERE txn_status = 'committed' GROUP BY ALL
""")
assert [row.n for row in times.collect()] == [2] * 1000
spark.stop()
