"""The amount of work of each benchmark: FULL for figures, QUICK to check that all of them run."""

from __future__ import annotations

from dataclasses import dataclass

TOPIC_PARTITIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """`rounds` is the number of runs of each peer, after one warm-up round.

    With `make bench-peers` each peer has its own session, warmed up by `peer_warm_ups` rounds; of
    `peer_runs` in each turn the last one counts, since Spark ends Python workers after an idle
    minute.

    `cores` are the tasks that a session runs at once, `files` those of a micro-batch's input, a
    task each, `partitions` those of sink's and source's topics.
    """

    rounds: int
    peer_warm_ups: int
    peer_runs: int
    transactions: int
    tails: int
    client_transactions: int
    committed_transactions: int
    records_by_message: int
    live_batches: int
    past_batches: int
    verified_batches: int
    checkpointed_files: tuple[int, ...]
    flat_transactions: int
    staged_bytes: int
    copied_topics: int
    copied_records: int
    records: int
    micro_batches: int
    small_micro_batches: int
    small_warm_up: int
    latency_warm_ups: int
    latency_rounds: int
    writer_s: float
    writer_processes: tuple[int, ...]
    store_transactions: int
    store_versions: int
    store_files: int
    cores: int = 2
    files: int = 2
    partitions: int = TOPIC_PARTITIONS

    @property
    def records_per_micro_batch(self) -> int:
        return self.records // self.micro_batches


FULL = Scale(
    rounds=5,
    peer_warm_ups=2,
    peer_runs=2,
    transactions=10_000,
    tails=500,
    client_transactions=2_000,
    committed_transactions=1_000,
    records_by_message=300_000,
    live_batches=10_000,
    past_batches=1_000_000,
    verified_batches=1_000_000,
    checkpointed_files=(1_000, 100_000, 1_000_000),
    flat_transactions=100_000,
    staged_bytes=2_000_000_000,
    copied_topics=100,
    copied_records=100_000,
    records=2_000_000,
    micro_batches=10,
    small_micro_batches=40,
    small_warm_up=10,
    latency_warm_ups=4,
    latency_rounds=10,
    writer_s=10.0,
    writer_processes=(1, 4, 16),
    store_transactions=20,
    store_versions=10_000,
    store_files=10_000,
)
QUICK = Scale(
    rounds=1,
    peer_warm_ups=1,
    peer_runs=1,
    transactions=300,
    tails=10,
    client_transactions=20,
    committed_transactions=10,
    records_by_message=2_000,
    live_batches=200,
    past_batches=4_000,
    verified_batches=4_000,
    checkpointed_files=(200,),
    flat_transactions=400,
    staged_bytes=2_000_000,
    copied_topics=3,
    copied_records=1_000,
    records=2_000,
    micro_batches=2,
    small_micro_batches=2,
    small_warm_up=1,
    latency_warm_ups=0,
    latency_rounds=1,
    writer_s=0.3,
    writer_processes=(1, 2),
    store_transactions=2,
    store_versions=30,
    store_files=800,
)
