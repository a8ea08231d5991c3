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
# # Reading the transaction log
#
# In Kafka the transaction log, the consumer offsets and the batch headers are internal topics and
# binary segments, read with `kafka-dump-log.sh`. Here they are Delta tables: SQL reads them, and
# time travel reads their history.
#
# | table | a row is |
# |---|---|
# | `__transaction_state-<n>` | a transactional.id: its state, and what is needed to finish it |
# | `__consumer_offsets-<n>` | a group: generation, offsets, tickets of transactional producers |
# | `<topic>` | a record; the header of its batch is in the partition columns |
#
# Any Delta reader can read them. **Write them with txnlog only**: another writer would assign
# offsets twice.

# %%
import os
import sys
import tempfile
from pathlib import Path

here = Path.cwd()
project = next(p for p in (here, *here.parents) if (p / "conf/spark-defaults.conf").is_file())
sys.path[:0] = [str(project), str(project / "jobs")]
# Spark's workers must run the Python of this kernel: it has txnlog installed.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

folder = Path(tempfile.mkdtemp(prefix="txnlog-log-"))  # or where you like
root = str(folder / "lake")

# %%
from spark_session import build_session

settings = {"spark.ui.enabled": "false", "spark.sql.warehouse.dir": str(folder / "warehouse")}
spark = build_session("transaction log", settings=settings)

# %% [markdown]
# ## Sample data
#
# 60 clicks, and a stream that copies them to `views` in three transactions.

# %%
clicks = spark.range(60).selectExpr("CAST(id % 6 AS STRING) AS key", "CAST(id AS STRING) AS value")
sink = clicks.write.format("txnlog").option("num.partitions", 2)
sink.option("topic", "clicks").mode("append").save(root)

group = {"group.id": "copier"}
start = {"startingOffsets": "committed", "auto.offset.reset": "earliest"}
source = spark.readStream.format("txnlog").options(subscribe="clicks", **group, **start)
copied = source.option("maxOffsetsPerTrigger", 20).load(root).selectExpr("key", "value")
query = (
    copied.writeStream.format("txnlog")
    .options(topic="views", **group)
    .option("num.partitions", 2)
    .option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True)
    .start(root)
)
query.awaitTermination()

# %% [markdown]
# ## A state row
#
# The transactional.id of a stream is its query id. An id lives in shard
# `murmur2(id) & 0x7fffffff % shards`, as in Kafka.

# %%
from txnlog import Cluster

cluster = Cluster.open(root)
shard = f"delta.`{root}/__transaction_state-{cluster.shard_of(query.id)}`"
spark.sql(f"SELECT * FROM {shard} WHERE transactional_id = '{query.id}'").show(vertical=True)

# %% [markdown]
# How to read it:
#
# - `producer_id`: assigned to the transactional.id; in the header of every batch it writes.
# - `producer_epoch`: of the next transaction, or the open one. A producer with a smaller epoch is
#   fenced.
# - `txn_epoch`: of the transaction that is open, decided, or ended last (-1: none yet). Producer
#   id and `txn_epoch` identify one transaction.
# - `state`: `PREPARE_COMMIT` and `PREPARE_ABORT` are the point of no return: any process that
#   reads one finishes it. `ONGOING` is undecided: its producer ends it, or the timeout
#   `timeout_ms` does. `EMPTY`, `COMPLETE_COMMIT` and `COMPLETE_ABORT` are final. A query leaves its
#   newest batch `PREPARE_COMMIT`, with all markers in place: the decision of the next batch is
#   COMPLETE, too, and else a sweep writes it.
# - `partitions`: JSON, the partitions an eager producer has written to so far.
# - `pending`: JSON, what a decided transaction publishes: staged files, and offsets of groups with
#   their tickets. `{}` if there is nothing to finish.
# - `owner`: JSON, the run, query and host; former runs; the query's newest micro-batch, which
#   identifies a replay; what fenced it, when and why.
# - `started_ms`, `updated_ms`: wall clock, for information only. No decision depends on them.
#
# ## Its history
#
# A transition is one commit to the shard, so a version is a state. (Delta warns about commits in
# the same millisecond, and shifts their times by a millisecond. Versions are exact.)

# %%
past = spark.sql(f"DESCRIBE HISTORY {shard}").orderBy("version").collect()
# A batch write has an id that is used once; the id of the clicks may be in this shard, too.
first = next(commit.version for commit in past if commit.operation == "INIT PRODUCER ID")
past = [commit for commit in past if commit.version >= first]


def row_at(version):
    """The row of the query in a version of its shard, by Delta's time travel."""
    (row,) = spark.sql(f"""
        SELECT producer_epoch, txn_epoch, state,
               from_json(pending, 'batches ARRAY<STRUCT<topic STRING, partition INT, path STRING,
                         num_records BIGINT>>,
                         tickets ARRAY<STRUCT<group_id STRING, ticket BIGINT>>') AS pending
        FROM {shard} VERSION AS OF {version} WHERE transactional_id = '{query.id}'
    """).collect()
    return row


for commit in past:
    print(commit.version, commit.timestamp, commit.operation)

# %% [markdown]
# `INIT PRODUCER ID` made the stream the owner. Then there is one decision for each micro-batch,
# which completes the batch before in the same write. The row lists what it publishes:

# %%
prepared = next(commit.version for commit in past if commit.operation == "PREPARE_COMMIT")
decided, following = row_at(prepared), row_at(prepared + 1)
for batch in decided.pending.batches:
    print(f"{batch.topic}-{batch.partition}: {batch.num_records} records in {batch.path}")
groups = [ticket.group_id for ticket in decided.pending.tickets]
print(decided.state, groups, decided.txn_epoch, "->", following.state, following.txn_epoch)

assert (decided.state, following.state) == ("PREPARE_COMMIT", "PREPARE_COMMIT")
assert decided.txn_epoch == following.txn_epoch - 1
assert {batch.topic for batch in decided.pending.batches} == {"views"}
assert sum(batch.num_records for batch in decided.pending.batches) == 20
assert groups == ["copier"]

# %% [markdown]
# ## Batch headers
#
# A topic's partition columns are the header of Kafka's record batch. A file is a batch.

# %%
headers = spark.sql(f"""
    SELECT partition, base_offset, last_offset, producer_id, producer_epoch, txn_status,
           count(*) AS records, any_value(_metadata.file_name) AS file
    FROM delta.`{root}/views` GROUP BY ALL ORDER BY partition, base_offset
""")
headers.drop("file").show()

assert {row.file for row in headers.collect()} >= {batch.path for batch in decided.pending.batches}

# %% [markdown]
# `producer_id` and `producer_epoch` identify a batch's transaction. Offsets are assigned in the
# marker commit that publishes the batch, so they are dense: no gap for a marker or an abort.

# %%
dense = spark.sql(f"""
    SELECT partition, count(DISTINCT base_offset + offset_delta) AS n,
           max(base_offset + offset_delta) + 1 AS end
    FROM delta.`{root}/views` GROUP BY partition
""").collect()
assert dense
assert all(row.n == row.end for row in dense)

# %% [markdown]
# ## read_committed and read_uncommitted
#
# The Spark sink stages its files and publishes them with the marker, so a topic never shows its
# undecided data. A producer with `transaction.publish=eager` works like Kafka's: it appends first
# and decides later. This one aborts a transaction, and leaves another open.

# %%
from txnlog import Producer

config = {"transactional.id": "eager", "transaction.publish": "eager"}
producer = Producer({"txnlog.root": root, "transaction.timeout.ms": 600_000, **config})
producer.init_transactions()

producer.begin_transaction()
producer.produce("views", "oops", partition=0)
producer.flush()
producer.abort_transaction()

producer.begin_transaction()
producer.produce("views", "undecided", partition=0)
producer.produce("views", "undecided, too", partition=0)
producer.flush()

# Another writer commits after the open transaction, in the same partition.
late = spark.sql("SELECT 'late' AS value, 0 AS partition")
late.write.format("txnlog").option("topic", "views").mode("append").save(root)

spark.sql(f"""
    SELECT base_offset + offset_delta AS offset, txn_status, CAST(value AS STRING) AS value
    FROM delta.`{root}/views` WHERE partition = 0 ORDER BY offset DESC LIMIT 5
""").show()

# %% [markdown]
# Three ways to read that:
#
# - `isolation.level=read_uncommitted`: all records, including aborted ones, as in Kafka.
# - `isolation.level=read_committed` (the default here): no aborted record, and **no record at or
#   after the last stable offset**, the first offset of the earliest undecided transaction; so a
#   reader never skips a record that is committed later.
# - `WHERE txn_status IN ('none', 'committed')` on the Delta table: every committed record,
#   including those after an open transaction. Suitable for a query; an incremental reader must
#   stop at the last stable offset.


# %%
def values(query):
    """The values that are not numbers: those of the producers above."""
    found = spark.sql(f"SELECT CAST(value AS STRING) AS value FROM {query}").collect()
    return {row.value for row in found if not row.value.isdigit()}


def read(level):
    """The values this isolation level shows now; an existing view would show its first state."""
    spark.sql(f"""
        CREATE OR REPLACE TEMP VIEW seen USING txnlog
        OPTIONS (path '{root}', subscribe 'views', 'isolation.level' '{level}')
    """)
    return values("seen")


by_status = f"delta.`{root}/views` WHERE txn_status IN ('none', 'committed')"
assert read("read_uncommitted") == {"oops", "undecided", "undecided, too", "late"}
assert read("read_committed") == set()
assert values(by_status) == {"late"}

# %% [markdown]
# Commit the open transaction, and the last stable offset moves to the end: both show the same.

# %%
producer.commit_transaction()
producer.close()
assert read("read_committed") == values(by_status) == {"undecided", "undecided, too", "late"}
assert read("read_uncommitted") == {"oops", "undecided", "undecided, too", "late"}

# %% [markdown]
# The marker commit rewrote the header of that batch with another status; the data file is the
# same. One version earlier the status was `ongoing`:

# %%
version = spark.sql(f"DESCRIBE HISTORY delta.`{root}/views`").first().version
ongoing = "WHERE txn_status = 'ongoing'"
was = values(f"delta.`{root}/views` VERSION AS OF {version - 1} {ongoing}")
assert was == {"undecided", "undecided, too"}
assert values(f"delta.`{root}/views` {ongoing}") == set()

# %% [markdown]
# ## Group offsets
#
# `offsets` is JSON: topic -> partition -> [next offset, generation, log version, metadata]. Lag is
# the end of a partition minus the group's offset.

# %%
groups = f"delta.`{root}/__consumer_offsets-{cluster.offsets_shard_of('copier')}`"
lag = spark.sql(f"""
    WITH committed AS (
        SELECT group_id, topic, INT(partition) AS partition, BIGINT(entry[0]) AS offset
        FROM {groups}
        LATERAL VIEW explode(from_json(offsets, 'MAP<STRING, MAP<STRING, ARRAY<STRING>>>'))
            AS topic, positions
        LATERAL VIEW explode(positions) AS partition, entry
    ), ends AS (
        SELECT partition, max(last_offset) + 1 AS end FROM delta.`{root}/clicks` GROUP BY partition
    )
    SELECT group_id, topic, partition, offset, end, end - offset AS lag
    FROM committed JOIN ends USING (partition) ORDER BY partition
""")
lag.show()

# %%
rows = lag.collect()
assert sum(row.offset for row in rows) == 60
assert all(row.lag == 0 for row in rows)
assert row_at(past[-1].version).state == "PREPARE_COMMIT"
spark.stop()
