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
# # See the transaction log
#
# Who wrote this record, what else was written with it, who is behind, and what happened to a
# producer that was fenced: in Kafka one digs for it with `kafka-dump-log.sh`. Here it is on disk,
# and a root shows itself. No Spark and no Java is needed for this notebook.

# %%
# %load_ext txnlog
import tempfile
import time

from txnlog import Cluster, Consumer, Producer

root = tempfile.mkdtemp(prefix="txnlog-log-")  # or yours
cluster = Cluster.open(root, create=True)

# %% [markdown]
# ## A shop
#
# Each order is a transaction over two topics. A billing service reads them, and stops half-way.

# %%
cluster.create_topic("orders", partitions=2)
cluster.create_topic("payments", partitions=1)


def producer(name, **config):
    """A producer that owns its transactional.id."""
    made = Producer({"txnlog.root": root, "transactional.id": name, **config})
    made.init_transactions()
    return made


def order(number):
    """One transaction."""
    shop.begin_transaction()
    shop.produce("orders", key=f"customer-{number % 5}", value=f"order {number}")
    shop.produce("payments", key=f"order {number}", value=f"{number} EUR")
    shop.commit_transaction()
    time.sleep(0.05)


shop = producer("shop")
start = {"group.id": "billing", "auto.offset.reset": "earliest"}
billing = Consumer({"txnlog.root": root, **start})
billing.subscribe(["orders"])
for number in range(40):
    order(number)
    if number % 4 == 0 and number < 20:
        billing.consume(10, timeout=1)
        billing.commit(asynchronous=False)
billing.close()

# %% [markdown]
# ## The root shows itself
#
# So does `cluster.topic("orders")`. All of this is also a page, `txnlog show`.

# %%
cluster

# %% [markdown]
# ## A record, its transaction and its siblings
#
# `Moments` reads what the root is, or was, with the last minute before (15 are the default). A
# record knows its transaction, and the transaction everything that became visible with it.

# %%
from txnlog.admin import Moments

moments = Moments(cluster, window_ms=60_000)
record = moments.records("orders", 0, count=1, with_values=True)[0]
sibling = moments.transaction(record.transaction)
print(record.key, record.value, record.transaction)
sibling

# %%
sibling.to_arrow().to_pandas()

# %% [markdown]
# ## Who is behind
#
# A moment has topics, groups, queries and lanes (one per
# transactional.id); each shows itself.

# %%
now = moments.now()
now.groups["billing"]

# %% [markdown]
# ## An abort, and a transaction that blocks readers
#
# With `transaction.publish=eager` data is in the topic before it is decided, as in Kafka. One
# transaction is aborted, the next stays open: readers of committed data stop at its first record,
# the last stable offset.

# %%
importer = producer("importer", **{"transaction.publish": "eager"})
importer.begin_transaction()
importer.produce("orders", "oops", partition=0)
importer.flush()
importer.abort_transaction()

importer.begin_transaction()
importer.produce("orders", "undecided", partition=0)
importer.flush()
order(number=40)
time.sleep(1)  # `now` reads a root no more often than a consumer does

blocked = moments.now()
blocked.topics["orders"]

# %% [markdown]
# ## A fence, with its reason
#
# A second process takes the transactional.id over: what the first one left open is aborted, and the
# first can write nothing any more. Its lane says who did it.

# %%
from txnlog.errors import ProducerFencedError


def lane(moment, name):
    """The timeline of a transactional.id."""
    return next(one for one in moment.lanes if one.transactional_id == name)


twin = producer("importer", **{"transaction.publish": "eager"})
try:
    importer.commit_transaction()
except ProducerFencedError as error:
    print(error)
time.sleep(1)

after = moments.now()
lane(after, "importer")

# %% [markdown]
# ## The past
#
# Every table keeps its old versions, so a moment can be asked for by its time: the transaction is
# open again. How far back: `earliest_ms`.

# %%
then = moments.at(blocked.at_ms)
lane(then, "importer")

# %% [markdown]
# ## As data
#
# `to_arrow` gives the tables of a moment: `partitions`, `rates`, `positions`, `lags`,
# `transactions`, `events`, `batches`, `phases`.

# %%
after.to_arrow("events").to_pandas()

# %%
import matplotlib.pyplot as plt

rates = after.to_arrow("rates").to_pandas().pivot(index="at", columns="topic")["records_per_s"]
lags = after.to_arrow("lags").to_pandas().set_index("at")["lag_records"]
states = after.to_arrow("transactions").to_pandas()
states["ms"] = (states["until"].fillna(states["since"]) - states["since"]).dt.total_seconds() * 1000
commits = states.query("transactional_id == 'shop' and phase == 'PrepareCommit'")

figure, (top, middle, bottom) = plt.subplots(3, figsize=(10, 7), layout="constrained")
written = rates[rates.any(axis=1)]
written.plot(ax=top, marker=".", title="written, records per second")
lags.plot(ax=middle, drawstyle="steps-post", title="lag of billing, records")
commits.plot.bar(ax=bottom, x="epoch", y="ms", title="decision to visible, ms, each commit of shop")
plt.show()

# %% [markdown]
# ## As Delta tables
#
# Any Delta reader reads the same tables: a topic's partition columns are the header of its batches,
# and `txn_status` says what is committed. **Write them with txnlog only.**

# %%
from deltalake import DeltaTable

records = DeltaTable(f"{root}/orders").to_pandas()
header = ["partition", "base_offset", "last_offset", "producer_id", "producer_epoch", "txn_status"]
records[header].sort_values("base_offset").tail(3)

# %%
assert {one.topic for one in sibling.written} == {"orders", "payments"}
assert lane(then, "importer").bars[-1].until_ms is None, "open then"
assert lane(after, "importer").bars[-1].phase.value == "CompleteAbort"
assert "fenced" in after.to_arrow("events")["kind"].to_pylist()
assert records.txn_status.value_counts().to_dict() == {"committed": 41, "aborted": 2}
shop.close()
twin.close()
