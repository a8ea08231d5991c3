"""Opens the cluster in a Spark task, and checks that it is the driver's."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from txnlog.cluster import Cluster
from txnlog.errors import ConfigError
from txnlog.settings.roots import redacted_url


def executor_cluster(
    root: str, storage_options: Mapping[str, str] | None, *, cluster_id: str
) -> Cluster:
    """The cluster at `root`, which must have the id that the driver found there.

    Opened once per thread; never created here, where the root may not be mounted.
    Raises ConfigError that names the host if there is none, or another one.
    """
    host = socket.gethostname()
    try:
        cluster = Cluster.cached(root, storage_options)
    except ConfigError as error:
        raise ConfigError(
            f"Host {host}: {error.message} The driver has cluster {cluster_id} at "
            f"{redacted_url(root)}. Mount the same folder there on every host, or use an object "
            "store.",
            host=host,
        ) from error
    if cluster.cluster_id != cluster_id:
        raise ConfigError(
            f"Host {host} has cluster {cluster.cluster_id} at {redacted_url(root)}, and the driver "
            f"has cluster {cluster_id} there: their folders differ. Mount the same folder on "
            "every host, or use an object store.",
            host=host,
        )
    return cluster
