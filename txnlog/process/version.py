"""The version of this package: printed by `txnlog --version` and recorded in each commit."""

VERSION = "0.1.0"
