"""The shortest expirations there may be: derived from how long a healthy producer is silent."""

from __future__ import annotations

import pytest

from tests.housekeeping.test_housekeeper import keep
from tests.producer.worlds import BOTH, started, values
from tests.staged_files import named_file
from tests.world import MINUTE_MS, check_settled, process, world
from txnlog.errors import ConfigError, UnknownProducerIdError
from txnlog.housekeeping.housekeeper import Housekeeper, HousekeepingSettings
from txnlog.housekeeping.producer_expiry import ProducerExpiry
from txnlog.protocol.expiry import (
    CLOCK_ERROR_MS,
    DELIVERY_TIMEOUT_MS_DEFAULT,
    PRODUCER_ID_EXPIRATION_MS_MIN,
    SEEN_MS_MAX,
    TRANSACTIONAL_ID_EXPIRATION_MS_MIN,
)
from txnlog.protocol.producer_expiry import (
    EXPIRED_PRODUCERS,
    ExpiryLimits,
    check_remembered,
    prepare_expiry,
)
from txnlog.protocol.transitions import TIMEOUT_MS_MAX
from txnlog.protocol.txn_memory import TxnMemory


def test_expirations_below_their_floors_are_refused_with_the_reason() -> None:
    """Forty seconds would expire every active producer (R8, R34, R35)."""
    for shortest_ms, option in (
        (TRANSACTIONAL_ID_EXPIRATION_MS_MIN, "transactional_id_expiration_ms"),
        (PRODUCER_ID_EXPIRATION_MS_MIN, "producer_id_expiration_ms"),
    ):
        HousekeepingSettings(**{option: shortest_ms})
        name = option.replace("_", ".")
        with pytest.raises(ConfigError, match=f"{name}={shortest_ms - 1} .*clocks may differ"):
            HousekeepingSettings(**{option: shortest_ms - 1})
    with pytest.raises(ConfigError, match=r"producer\.id\.expiration\.ms=40000"):
        ProducerExpiry(process(world()), producer_id_expiration_ms=40_000)


@BOTH
def test_transaction_as_long_as_it_may_be_outlives_the_shortest_expiration(publish: str) -> None:
    """The row of a deferred transaction is idle meanwhile; housekeepers check often (R34, R35)."""
    shared = world(config={"retention.ms": "-1"})
    settings = HousekeepingSettings(
        abort_interval_ms=30_000,
        remove_interval_ms=30_000,
        transactional_id_expiration_ms=TRANSACTIONAL_ID_EXPIRATION_MS_MIN,
    )
    keeper = Housekeeper(process(shared), settings)
    keep(shared, keeper, MINUTE_MS)
    made = started(shared, publish, transaction_timeout_ms=TIMEOUT_MS_MAX)
    keep(shared, keeper, SEEN_MS_MAX - 1)
    made.begin_transaction()
    made.produce("orders", "slow")
    made.flush()
    keep(shared, keeper, TIMEOUT_MS_MAX - MINUTE_MS)
    made.commit_transaction()
    assert values(process(shared), "orders") == ["slow"]
    keep(shared, keeper, 2 * TRANSACTIONAL_ID_EXPIRATION_MS_MIN)
    assert process(shared).coordinator.describe("tx") is None
    check_settled(shared)


def test_first_batch_of_a_new_producer_is_younger_than_the_minimum_expiration() -> None:
    """It was sent again for delivery.timeout.ms, and its clock is behind (R8, R34)."""
    now_ms = 10**12
    memory = TxnMemory()
    memory.set_txn("txnlog/7-0", 3, 0)
    limits = ExpiryLimits(producer_id_expiration_ms=PRODUCER_ID_EXPIRATION_MS_MIN)
    txns = prepare_expiry(memory, living=(), now_ms=now_ms, limits=limits)
    assert txns is not None
    memory.set_txn(EXPIRED_PRODUCERS, txns[EXPIRED_PRODUCERS], now_ms)
    staged_ms = now_ms - DELIVERY_TIMEOUT_MS_DEFAULT - CLOCK_ERROR_MS

    check_remembered(memory, [named_file(staged_ms=staged_ms)], topic="t", producer_id=8)
    with pytest.raises(UnknownProducerIdError):
        check_remembered(memory, [named_file(staged_ms=staged_ms - 1)], topic="t", producer_id=8)
