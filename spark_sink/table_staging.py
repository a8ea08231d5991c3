"""Staging of rows for an enlisted Delta table by Spark's own Delta writer.

It writes into a staging table below the enlisted one, so constraints, generated and default values,
column mapping and statistics are Spark's. No commit of the enlisted table names the files before
the transaction is decided (D144).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from txnlog.cluster import Cluster
from txnlog.connector.causes import line_of_cause
from txnlog.connector.spark_delta import (
    escaped_url,
    forget_table,
    hadoop_options,
    spark_url,
    why_no_delta,
)
from txnlog.coordinator.tables import TableChange
from txnlog.errors import ConfigError, TableDataError, TableFeatureError
from txnlog.protocol.enlisted.actions import AddFile
from txnlog.protocol.enlisted.features import check_enlistable
from txnlog.protocol.enlisted.parts import Mode, Part, new_part, staging_folder
from txnlog.protocol.enlisted.staging_tables import adopted, adopted_change, cloned, first_commit
from txnlog.settings.config import Config
from txnlog.storage.delta.log_files import commit_path, log_folder
from txnlog.storage.store.objects import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("txnlog")

Partitions = Sequence[Mapping[str, object]]

_DELTA_APP_ID = "spark.databricks.delta.write.txnAppId"


class StagedWrites:
    """What a transaction writes to one enlisted table, all under one state of it."""

    def __init__(
        self,
        cluster: Cluster,
        options: Config,
        spark: SparkSession,
        name: str,
        mode: Mode,
        partitions: Partitions | None = None,
    ) -> None:
        """Create the staging table.

        Raises ConfigError, UnknownTableError, TableFeatureError, TableDataError.
        """
        table = cluster.find_table(name)
        if table.staging == "visible":
            raise TableFeatureError(
                f"{name!r} is enlisted with staging=visible, and Spark stages rows below _txnlog. "
                f"Write to it with a producer, or `txnlog tables enlist {name} {table.url}`.",
                url=table.url,
            )
        if spark.conf.get(_DELTA_APP_ID, None) is not None:
            raise ConfigError(
                f"{_DELTA_APP_ID} is set in this session: Delta could skip rows of the transaction "
                "as written before. Unset it; the transaction is what makes a batch idempotent.",
                option=_DELTA_APP_ID,
            )
        self._spark = spark
        self._name = name
        self._url = table.url
        self._storage = options.storage_at(table.url)
        self._staged_ms = cluster.store.now_ms()
        self.mode, self._partitions = mode, partitions
        self._folder = f"{staging_folder(cluster.cluster_id)}/{os.urandom(16).hex()}"
        if mode == "merge":
            log = cluster.open_table(table.url)
            log.refresh_files()
            self._state = log.state
        else:
            log = cluster.table_log(table.url)
            log.refresh()
            self._state = log.state.as_staged_under()
        check_enlistable(self._state)
        self._store: ObjectStore = log.store
        self._create()

    def _create(self) -> None:
        # Unknown partition columns are refused here.
        part = new_part(
            self._state,
            (),
            mode="append" if self.mode == "append" else "overwrite",
            partitions=self._partitions,
        )
        files: list[AddFile] = []
        if self.mode == "merge":
            try:
                files += cloned(part, self._state, base=self._base)
            except ValueError as error:
                raise TableFeatureError(
                    f"Rows of table {self._name!r} ({self._url}) cannot be changed: {error}. "
                    "Nothing was written.",
                    table=self._name,
                    url=self._url,
                ) from error
        self._store.check_folder("_delta_log")
        path = commit_path(self._folder, 0)
        self._store.make_folder(log_folder(self._folder))
        data = first_commit(self._state.definition, os.urandom(16).hex(), files)
        self._store.put_if_absent(path, data)

    @property
    def _base(self) -> str:
        return escaped_url(self._spark, self._url, self._storage)

    @property
    def place(self) -> str:
        """The URL of the staging table for Spark."""
        return f"{spark_url(self._spark, self._url, self._storage)}/{self._folder}"

    def append(self, rows: DataFrame) -> None:
        """Stage rows, by the names of columns. Raises ConfigError without Delta, Spark's errors."""
        writer = rows.write.format("delta").mode("append").option("mergeSchema", "false")
        options = hadoop_options(self._spark, self._url, self._storage)
        self._run(partial(writer.options(**options).save, self.place))

    def sql(self, statement: Callable[[str], object]) -> None:
        """Run a statement, which gets the staging table's name in SQL."""
        quoted = self.place.replace("`", "``")
        self._run(partial(statement, f"delta.`{quoted}`"))

    def merge(self, function: Callable[[str], object]) -> None:
        """Let a function change rows; it gets the path of the staging table."""
        self._run(partial(function, self.place))

    def _run(self, write: Callable[[], object]) -> None:
        try:
            write()
        except Exception as error:
            if why := why_no_delta(self._spark, error):
                raise ConfigError(
                    f"Rows of table {self._name!r} are written by Spark's Delta writer: {why}. "
                    f"Nothing was written. Spark says: {line_of_cause(error)}"
                ) from error
            raise

    def change(self) -> TableChange | None:
        """For the coordinator; None where no row was written or changed.

        Raises TableDataError for what is no append, no one change, or has rows outside of the
        partitions.
        """
        try:
            part = self._part(list(self._commits()))
        except ValueError as error:
            raise TableDataError(
                f"Table {self._name!r} ({self._url}): {error}. Nothing was written.",
                table=self._name,
                url=self._url,
            ) from error
        if part is None:
            return None
        return TableChange(name=self._name, url=self._url, part=part, staged_ms=self._staged_ms)

    def _part(self, commits: Sequence[bytes]) -> Part | None:
        if self.mode == "merge":
            return adopted_change(
                self._state, commits, self._folder, base=self._base, partitions=self._partitions
            )
        adds = adopted(commits, self._folder)
        if not adds and self.mode == "append":
            return None
        return new_part(self._state, adds, mode=self.mode, partitions=self._partitions)

    def close(self) -> None:
        """Forget the staging table, also one that was not written. It raises nothing."""
        try:
            forget_table(self._spark, self.place)
        except Exception as error:
            # Java's errors have no common base class, and nothing depends on this call.
            logger.debug("Delta keeps the staging table of %s in memory: %r", self._name, error)

    def _commits(self) -> Iterator[bytes]:
        """What Spark has committed to the staging table."""
        names = {item.path for item in self._store.list(log_folder(self._folder))}
        version = 1
        while (path := commit_path(self._folder, version)) in names:
            yield self._store.get(path)
            version += 1
