"""The version of this package: what `txnlog --version` says and commits are signed with."""

VERSION = "0.1.0"
