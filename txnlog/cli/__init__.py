"""The command `txnlog`. Needs the extra `cli` (typer and rich)."""
