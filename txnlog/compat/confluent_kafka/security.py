"""Names of ACLs, users and leader elections, none of which exist here.

Programs that administer a Kafka cluster import them with all the others. The AdminClient refuses
their calls as a broker without an authorizer does, with SECURITY_DISABLED.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from txnlog.admin import ResourceType
from txnlog.compat.confluent_kafka.error import KafkaError, KafkaException
from txnlog.compat.confluent_kafka.error_codes import CODES


class AclOperation(Enum):
    """What an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class AclPermissionType(Enum):
    """Whether an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class ResourcePatternType(Enum):
    """How the name of an ACL is compared."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class ScramMechanism(Enum):
    """How a user proves a password."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


class ElectionType(Enum):
    """Which replica shall lead."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True)
class AclBinding:
    """An ACL."""

    restype: ResourceType
    name: str | None
    resource_pattern_type: ResourcePatternType
    principal: str | None
    host: str | None
    operation: AclOperation
    permission_type: AclPermissionType


@dataclass(frozen=True)
class AclBindingFilter(AclBinding):
    """Which ACLs to describe or delete; None is any."""


@dataclass(frozen=True)
class ScramCredentialInfo:
    """How a password is stored."""

    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True)
class UserScramCredentialAlteration:
    """A change of a user."""

    user: str


@dataclass(frozen=True)
class UserScramCredentialUpsertion(UserScramCredentialAlteration):
    """A new password."""

    scram_credential_info: ScramCredentialInfo
    password: bytes
    salt: bytes | None = None


@dataclass(frozen=True)
class UserScramCredentialDeletion(UserScramCredentialAlteration):
    """A password less."""

    mechanism: ScramMechanism


def refusal(what: str) -> KafkaException:
    """The answer to a call about them."""
    return KafkaException(
        KafkaError(
            CODES["SECURITY_DISABLED"],
            f"There are no {what} here: txnlog has no brokers, and permissions are those of the "
            "store that holds the root (docs/confluent-kafka.md).",
        )
    )
