"""`__cluster` of a root that may be a copy: whose, who is making it, and what it was when whole."""

from __future__ import annotations

from collections.abc import Callable

from txnlog.protocol.copies import COPY, WHOLE_COPY, Copy, WholeCopy, begin_copy, end_copy
from txnlog.protocol.snapshots import read_json
from txnlog.storage.delta.delta_log import Outcome
from txnlog.storage.delta.transact import transact
from txnlog.storage.store.objects import ObjectStore
from txnlog.storage.tables.cluster_log import COPY_OF, OFF, ON, PATH, ClusterLog

WHOLE_COPIES = f"{PATH}/copy-"
"""What the files begin with that hold a copy when it is whole; COPY_OF names one."""


class CopyLog(ClusterLog):
    """Handle of `__cluster`, with what changes it of a copy. The constructor does no I/O."""

    _whole: tuple[str, WholeCopy] | None = None

    @property
    def producer_ids_end(self) -> int:
        """The first producer id that was not given out, as of the last refresh."""
        return self._view.producer_ids_end

    def whole_copy(self) -> WholeCopy | None:
        """What it was as a copy when that was whole last; None: it never was, or is none."""
        file = "" if self.copy is None else self.copy.file
        if file and (self._whole is None or self._whole[0] != file):
            self._whole = file, read_whole_copy(self._store, file)
        return self._whole[1] if file and self._whole else None

    def begin_copy(
        self, copy: Copy, *, expected: Copy | None, shards: int, offsets_shards: int, fsync: bool
    ) -> None:
        """From now on `copy.run` copies to here; the cluster is created if it was `expected`.

        Raises as txnlog.protocol.copies.begin_copy.
        """
        run, url = copy.run, self._store.url
        if expected is None:
            on = ON if fsync else OFF
            self._create(shards, offsets_shards, on, {COPY_OF: COPY.encode(copy)})
        self._change_copy(lambda: begin_copy(self.copy, expected=expected, run=run, url=url))
        self._follow()

    def end_copy(self, run: str, file: str) -> None:
        """The copy is whole, as `file` has it. Raises as txnlog.protocol.copies.end_copy."""
        self._change_copy(lambda: end_copy(self.copy, run=run, file=file, url=self._store.url))

    def _change_copy(self, decide: Callable[[], Copy]) -> None:
        def commit(copy: Copy) -> Outcome | None:
            if copy == self.copy:
                return None
            action = self._with_config({COPY_OF: COPY.encode(copy)})
            return self._log.commit([action], operation="COPY")

        transact(self._log, decide, commit)


def read_whole_copy(store: ObjectStore, file: str) -> WholeCopy:
    """What a copy was when it was whole. Raises ObjectNotFoundError, CorruptLogError."""
    text = store.get(file).decode(errors="replace")
    return read_json(WHOLE_COPY, text, source=f"{store.url}/{file}")
