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
# # Crash and recovery
#
# A stream books each payment in two topics, `ledger` and `receipts`. It runs in a separate process,
# which we kill with SIGKILL twice, at the two worst moments:
#
# 1. the transaction is decided and **one of the two topics** has its data;
# 2. the transaction is decided and **no topic** has its data; then we delete the checkpoint, too.
#
# Then we restart it and count.

# %%
import inspect
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import pyarrow as pa
from deltalake import DeltaTable

here = Path.cwd()
project = next(p for p in (here, *here.parents) if (p / "conf/spark-defaults.conf").is_file())
sys.path.insert(0, str(project / "jobs"))
# Spark's workers must run the Python of this kernel: it has txnlog installed.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

folder = Path(tempfile.mkdtemp(prefix="txnlog-crash-"))  # or where you like
root, checkpoint = folder / "lake", folder / "checkpoint"

# %%
from spark_session import build_session

settings = {"spark.ui.enabled": "false", "spark.sql.warehouse.dir": str(folder / "warehouse")}
spark = build_session("crash and recovery", settings=settings)

PAYMENTS = 1000
payments = spark.range(PAYMENTS).selectExpr(
    "CAST(id % 20 AS STRING) AS key", "CAST(id AS STRING) AS value"
)
payments.write.format("txnlog").option("topic", "payments").mode("append").save(str(root))

# %% [markdown]
# ## The job
#
# Five micro-batches of 200 payments; each is one transaction over two topics and the offsets of
# the group `bookkeeper`.


# %%
def book(spark, root, checkpoint):
    """Book all available payments in both topics, 200 per transaction."""
    group = {"group.id": "bookkeeper"}
    start = {"startingOffsets": "committed", "auto.offset.reset": "earliest"}
    source = spark.readStream.format("txnlog").options(subscribe="payments", **group, **start)
    payments = source.option("maxOffsetsPerTrigger", 200).load(str(root))
    booked = payments.selectExpr("key", "value", "explode(array('ledger', 'receipts')) AS topic")
    sink = booked.writeStream.format("txnlog").options(**group)
    sink = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    sink.start(str(root)).awaitTermination()


# %% [markdown]
# ## The process to kill
#
# The same function in a separate driver. The commit path has fail points
# (`txnlog/process/failpoint.py`) where a test can stop it: `marker.after@3:pause` pauses the third
# time it is reached, right after a topic got its data. While it pauses we read the tables as any
# reader would; then we kill the driver with all its child processes.

# %%
from flights_driver import DriverProcess, driver_environment

# A killed JVM leaves its temporary files. The path must be short: it has Spark's sockets, too.
scratch = Path(tempfile.mkdtemp(prefix="v-"))
script = folder / "bookkeeper.py"
script.write_text(
    "import sys\nfrom spark_session import build_session\n\n\n"
    + inspect.getsource(book)
    + '\n\nbook(build_session("bookkeeper"), *sys.argv[1:])\n'
)


def run_until(place, name):
    """Start the job in a process; return when it has reached the fail point `place`."""
    hits = folder / f"{name}.hits"
    environment = driver_environment(
        scratch,
        {
            "PYTHONPATH": f"{project}{os.pathsep}{project / 'jobs'}",
            "TXNLOG_FAILPOINT": f"{place}:pause",
            "TXNLOG_FAILPOINT_STATE": str(hits),
        },
    )
    command = [sys.executable, str(script), str(root), str(checkpoint)]
    driver = DriverProcess(command, environment, folder / f"{name}.log")
    times, deadline_s = int(place.partition("@")[2]), time.monotonic() + 120
    while not hits.exists() or hits.stat().st_size < times:
        if driver.exit_code() is not None or time.monotonic() > deadline_s:
            driver.kill()
            raise driver.failure(f"The driver did not get to {place}.")
        time.sleep(0.05)
    return driver


kills_s = []


def sigkill(driver):
    """SIGKILL for the Python driver, its JVM, and Spark's Python workers."""
    driver.kill()
    kills_s.append(time.time())
    assert driver.exit_code() == -9


# %% [markdown]
# ## First kill: one topic has the data, the other does not

# %%
driver = run_until("marker.after@3", "driver-1")


# %%
def states():
    """The transaction log: one row per transactional.id, here the id of the streaming query."""
    shards = sorted(root.glob("__transaction_state-*"))
    # Any Delta reader works; this one is fast. With SQL: notebooks/transaction_log.
    rows = pa.concat_tables([DeltaTable(shard).to_pyarrow_table() for shard in shards]).to_pandas()
    rows["staged_files"] = [len(json.loads(p).get("batches", [])) for p in rows["pending"]]
    rows["transactional_id"] = rows["transactional_id"].str[:8]
    columns = ["transactional_id", "producer_epoch", "txn_epoch", "state", "staged_files"]
    return rows.sort_values("started_ms")[columns]


def counts():
    """Committed records per topic."""
    reader = spark.read.format("txnlog").option("subscribe", "ledger,receipts")
    return {r.topic: r["count"] for r in reader.load(str(root)).groupBy("topic").count().collect()}


before, half = states(), counts()
print(half)
print(before.to_string(index=False))

# %% [markdown]
# Two transactions are in `ledger`, one in `receipts`: a reader that joins the two topics now sees
# half of the second transaction. This state is temporary: the row has state `PREPARE_COMMIT`, and
# `pending` lists the transaction's files; the next process, Spark or not, publishes the rest.

# %%
assert half == {"ledger": 400, "receipts": 200}
assert list(before.state) == ["PREPARE_COMMIT"]
sigkill(driver)

# %% [markdown]
# ## Second kill: decided, nothing published, and the checkpoint deleted
#
# The next driver reads the row and finishes its transaction. Spark replays the micro-batch, which
# is already in the topics, so the driver skips it. It continues until it has decided its second
# transaction.

# %%
driver = run_until("prepare_commit.after@2", "driver-2")
between = counts()
sigkill(driver)
shutil.rmtree(checkpoint)

print(between)
assert between == {"ledger": 600, "receipts": 600}
assert list(states().state) == ["PREPARE_COMMIT"]

# %% [markdown]
# ## Recovery
#
# Without the checkpoint Spark has no record of the old query: this is a new one, with another
# transactional.id. It reads the group's offsets to start from, meets the ticket of the killed
# query's transaction, finishes that transaction first, and starts after it. Its own last batch is
# published, too; its row stays `PREPARE_COMMIT` until a next batch, or a sweep, completes it.

# %%
book(spark, root, checkpoint)

after = states()
print(counts())
print(after.to_string(index=False))

# %% [markdown]
# ## Timeline
#
# Each commit of a Delta log has a time and an operation in its `commitInfo`, and the headers it
# wrote in its `add` actions. The plots use only these.


# %%
def history(table):
    """For each commit of a table: time in s, operation, added headers."""
    for file in sorted((root / table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        added = [action["add"]["partitionValues"] for action in actions if "add" in action]
        yield info["timestamp"] / 1000, info["operation"], added


def ends(table):
    """Times in s, and the sum of a topic's end offsets at each."""
    times_s, totals, partitions = [], [], {}
    for time_s, _, added in history(table):
        for header in added:
            partitions[header["partition"]] = int(header["last_offset"]) + 1
        times_s.append(time_s)
        totals.append(sum(partitions.values()))
    return times_s, totals


def read_by_group():
    """Times in s, and the sum of the group's offsets at each."""
    times_s, totals = [], []
    [shard] = root.glob("__consumer_offsets-*")  # of the only group
    for time_s, _, rows in history(shard.name):
        offsets = [json.loads(row["offsets"]).get("payments", {}) for row in rows]
        if any(offsets):
            times_s.append(time_s)
            totals.append(sum(position[0] for position in offsets[-1].values()))
    return times_s, totals


STATES = ["EMPTY", "PREPARE_COMMIT", "COMPLETE_COMMIT"]
transitions = {}
for shard in sorted(root.glob("__transaction_state-*")):
    for time_s, _, rows in history(shard.name):
        for row in rows:
            if not row["transactional_id"].startswith("_batch-"):  # the feeder's, used once
                transitions.setdefault(row["transactional_id"], []).append((time_s, row["state"]))

# %%
zero_s = min(time_s for steps in transitions.values() for time_s, _ in steps)
figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(10, 6), layout="constrained")

for name, steps in sorted(transitions.items(), key=lambda item: item[1]):
    times_s = [time_s - zero_s for time_s, _ in steps]
    levels = [STATES.index(state) for _, state in steps]
    top.step(times_s, levels, where="post", marker="o", label=f"query {name[:8]}")
top.set_yticks(range(len(STATES)), STATES)
top.set_title("state of each transactional.id")

for topic, style in (("ledger", "-"), ("receipts", "--")):
    times_s, totals = ends(topic)
    bottom.step([t - zero_s for t in times_s], totals, style, where="post", label=topic)
times_s, totals = read_by_group()
bottom.step(
    [t - zero_s for t in times_s], totals, ":", where="post", marker=".", label="read by the group"
)
bottom.set_title("end offsets of the topics, committed offsets of the group")
bottom.set_xlabel("seconds since the first query took its id")

for axes in (top, bottom):
    for kill_s in kills_s:
        axes.axvline(kill_s - zero_s, color="red", alpha=0.5, label="SIGKILL")
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(handles.values(), handles.keys())

# %% [markdown]
# The red lines are the kills. Above: `PREPARE_COMMIT` lasts over the gap, and the next transition
# is COMPLETE. Below: at the first kill `receipts` and the group are behind `ledger`; at the second
# all three are behind the decided transaction. Each gap is a start of Spark.
#
# ## No duplicates, no losses


# %%
def booked(topic):
    """The payments in a topic, sorted."""
    records = spark.read.format("txnlog").option("subscribe", topic).load(str(root))
    return sorted(int(row.value) for row in records.selectExpr("CAST(value AS STRING)").collect())


ledger, receipts = booked("ledger"), booked("receipts")
print(f"duplicates {len(ledger) - len(set(ledger))}, missing {PAYMENTS - len(set(ledger))}")

assert ledger == receipts == list(range(PAYMENTS))
assert set(after.state) <= {"PREPARE_COMMIT", "COMPLETE_COMMIT"}
assert read_by_group()[1][-1] == PAYMENTS
assert len(kills_s) == 2
shutil.rmtree(scratch)
spark.stop()
