"""Figures of txnlog, measured on this machine: `make bench`."""
