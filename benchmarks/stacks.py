"""`python -m benchmarks.stacks`: where the addBatch of a small micro-batch spends its time.

It takes the stacks of Spark's threads again and again while micro-batches of 100 records run, of
txnlog and of the Python source and sink that do nothing, and shares the time of addBatch out by
what they show. Taking them costs something: the last line has addBatch without it. Where tasks and
their Python workers keep all cores busy, they are taken late, and show less of them than there is.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from benchmarks.folders import new_folder
from benchmarks.latency import LatencyRuns, fill
from benchmarks.scale import FULL
from benchmarks.session import bench_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS, TURNS, WARM_UPS = 3, 4, 3
LIST_THREADS_S = 0.3
MICRO_BATCH_S = 0.05
FRAMES_MAX = 200
ADD_BATCH = "withNewExecutionId"
IN_JOB = "DAGScheduler.runJob"
# What the stack of the stream's thread has, the first one counts.
DRIVER = {
    "createStreamingWriterFactory": "the writer's plan: a Python worker is asked",
    "PythonStreamingWrite.commit": "the commit: a Python worker is asked",
    IN_JOB: "the job",
    "SparkPlan.execute(": "the plan becomes a job: code is generated",
    "SparkContext.runJob": "the job is submitted",
    "explainString": "the plan is described for listeners",
    "SparkPlanInfo": "the plan is described for listeners",
    "ExpressionEncoder": "an encoder is made of the result, which is empty",
}
REST = "Spark's events, settings, the rest"
# While the stream's thread waits for its job: what the stacks of these other threads have.
OTHERS = ("Executor task launch", "dag-scheduler", "dispatcher", "task-result-getter")
IN_A_JOB = {
    "EPollSelectorImpl": "the job: a task waits for Python",
    "SocketChannelImpl": "the job: a task's rows go to Python",
    "genCode": "the job: a task generates code",
    "TaskRunner.run": "the job: a task's other work in the JVM",
    "DAGScheduler.handleJobSubmitted": "the job: it is made into tasks, which are broadcast",
    "TaskSchedulerImpl": "the job: tasks are given to threads, or their results taken",
    "TaskResultGetter": "the job: tasks are given to threads, or their results taken",
    "DAGScheduler.handle": "the job: it ends",
}
WAKING = "the job: Python works, or threads are woken"


class Stacks:
    """Takes stacks while it is entered; `parts` are their numbers."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._jvm, self._new_array = context._jvm, context._gateway.new_array
        self._java: Any = self._jvm.java.lang
        self.parts: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Stacks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        threads = self._java.management.ManagementFactory.getThreadMXBean()
        listed_s, numbers = 0.0, None
        # Another part of a micro-batch each time, however long the last stacks took to be read.
        while not self._stop.wait(random.random() * MICRO_BATCH_S):
            if numbers is None or time.monotonic() - listed_s > LIST_THREADS_S:
                listed_s, numbers = time.monotonic(), self._threads()
                continue
            # All at one moment.
            stream, *others = threads.getThreadInfo(numbers, FRAMES_MAX)
            stack = self._text(stream)
            if ADD_BATCH not in stack:
                continue
            part = next((what for name, what in DRIVER.items() if name in stack), REST)
            if IN_JOB in stack:
                own = "".join(self._text(other) for other in others)
                part = next((what for name, what in IN_A_JOB.items() if name in own), WAKING)
            self.parts[part] += 1

    def _threads(self) -> Any:
        """Ids of the stream's thread and of OTHERS, as Java's array; None without a stream."""
        known = self._jvm.java.util.ArrayList(self._java.Thread.getAllStackTraces().keySet())
        found = {thread.getId(): thread.getName() for thread in known}
        streams = [key for key, name in found.items() if name.startswith("stream execution")]
        others = [key for key, name in found.items() if name.startswith(OTHERS)]
        if not streams:
            return None
        array = self._new_array(self._jvm.long, 1 + len(others))
        for at, number in enumerate([streams[0], *others]):
            array[at] = number
        return array

    def _text(self, thread: Any) -> str:
        """A thread's stack; nothing of one that has ended."""
        if thread is None:
            return ""
        holder = self._java.Throwable()
        holder.setStackTrace(thread.getStackTrace())
        return str(self._jvm.org.apache.spark.util.Utils.exceptionString(holder))


def main() -> None:
    """Print the ms of each part, on average of all micro-batches."""
    parts: dict[str, Counter[str]] = {"nothing": Counter(), "txnlog": Counter()}
    with_ms: dict[str, list[int]] = {name: [] for name in parts}
    plain_ms: dict[str, list[int]] = {name: [] for name in parts}
    with bench_session() as spark:
        root = new_folder()
        fill(root, FULL)
        runs = LatencyRuns(spark, Path(root), Path(root), FULL)
        for turn in range(-WARM_UPS, TURNS):
            for name in list(parts)[:: 1 if turn % 2 else -1]:
                run = runs.txnlog if name == "txnlog" else runs.nothing
                plain = [batch["addBatch"] for _ in range(RUNS) for batch in run()]
                if turn < 0:
                    continue
                with Stacks(spark) as stacks:
                    with_ms[name] += [batch["addBatch"] for _ in range(RUNS) for batch in run()]
                parts[name] += stacks.parts
                plain_ms[name] += plain
    print(f"{'ms of addBatch':55}" + "".join(f"{name:>9}" for name in parts))
    for part in sorted(set().union(*parts.values()), key=lambda part: -parts["txnlog"][part]):
        shares = [
            found[part] / found.total() * mean(with_ms[name]) for name, found in parts.items()
        ]
        print(f"{part:55}" + "".join(f"{share:9.1f}" for share in shares))
    for title, times in (("in all", with_ms), ("without taking stacks", plain_ms)):
        print(f"{title:55}" + "".join(f"{mean(times[name]):9.1f}" for name in parts))


if __name__ == "__main__":
    main()
