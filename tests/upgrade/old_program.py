"""Run by the wheel of an earlier commit: writes a root, reports what was acknowledged, and dies.

Uses only names that every version has had. The arguments are the root and the folder of the wheel.
"""

import json
import os
import sys

import txnlog
from txnlog.admin import AdminClient, NewTopic
from txnlog.consumer import Consumer
from txnlog.messages import TopicPartition
from txnlog.producer import Producer

root, wheel = sys.argv[1:]
assert os.path.realpath(txnlog.__file__).startswith(os.path.realpath(wheel)), txnlog.__file__
config = {"txnlog.root": root}

admin = AdminClient(config)
for future in admin.create_topics([NewTopic("orders", 2), NewTopic("stock", 1)]).values():
    future.result()

with Producer(config) as plain:
    for number in range(20):
        plain.produce("orders", key=f"k{number % 5}", value=f"plain {number}")

shop = Producer({**config, "transactional.id": "shop"})
shop.init_transactions()
for number in range(3):
    shop.begin_transaction()
    shop.produce("orders", value=f"sold {number}", partition=0)
    shop.produce("stock", value=f"taken {number}")
    shop.commit_transaction()
shop.begin_transaction()
shop.produce("orders", value="never")
shop.abort_transaction()

reader = Consumer({**config, "group.id": "audit", "auto.offset.reset": "earliest"})
reader.assign([TopicPartition("orders", 0, 0)])
read = [reader.poll(30).value().decode() for _ in range(4)]
reader.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)

router = Consumer({**config, "group.id": "router", "enable.auto.commit": False})
router.subscribe(["stock"])
router.poll(0.2)
routed = Producer({**config, "transactional.id": "routed"})
routed.init_transactions()
routed.begin_transaction()
routed.produce("orders", value="routed", partition=1)
routed.send_offsets_to_transaction(
    [TopicPartition("stock", 0, 2)], router.consumer_group_metadata()
)
routed.commit_transaction()

# An open eager transaction, whose process is gone.
dying = Producer({**config, "transactional.id": "dying", "transaction.publish": "eager"})
dying.init_transactions()
dying.begin_transaction()
dying.produce("stock", value="never")
dying.flush()

stock = [f"taken {number}" for number in range(3)]
orders = [f"plain {number}" for number in range(20)] + [f"sold {number}" for number in range(3)]
print(json.dumps({"orders": [*orders, "routed"], "stock": stock, "audit": 4, "router": 2}))
sys.stdout.flush()
os._exit(0)
