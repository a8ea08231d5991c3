"""Which columns the rows of a part have in its table now, to be staged there again."""

from __future__ import annotations

from txnlog.protocol.enlisted.actions import Definition
from txnlog.protocol.enlisted.parts import Part, Partition
from txnlog.protocol.enlisted.schemas import by_name, partition_fields, schema_of


def columns_now(was: Definition, now: Definition) -> dict[str, str]:
    """Column of `was` -> its name in `now`; without those that are gone.

    A column is the same one by its name in data files, which a rename keeps; else by its name.
    """
    before = by_name(schema_of(was), was.column_mapping)
    after = by_name(schema_of(now), now.column_mapping)
    found = {field.name: after[name].name for name, field in before.items() if name in after}
    left = {field.name for field in after.values()} - set(found.values())
    found.update((f.name, f.name) for f in before.values() if f.name in left - found.keys())
    return found


def partitions_now(part: Part, now: Definition) -> list[Partition] | None:
    """What an overwrite replaces, by the names of partition columns in `now`.

    Raises ValueError for a column that does not partition the table any more.
    """
    if part.partitions is None:
        return None
    names = columns_now(part.definition, now)
    known = {field.name for field in partition_fields(now).values()}
    found = []
    for partition in part.partitions:
        renamed = {}
        for physical, value in partition.items():
            name = partition_fields(part.definition)[physical].name
            if names.get(name) not in known:
                raise ValueError(f"the table is not partitioned by {name!r} any more")
            renamed[names[name]] = value
        found.append(renamed)
    return found
