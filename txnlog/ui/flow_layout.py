"""Producers, queries, topics and groups as a graph in layers, from left to right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from txnlog.protocol.moments import Edge, Flow, Node, NodeKind

NODES_MAX: Final = 60
BOX: Final = (152, 40)
GAP: Final = (104, 16)
PASS: Final = 10
MARGIN: Final = 12
LABEL: Final = (48, 13)
LABEL_SHARES: Final = (0.5, 0.58, 0.42, 0.67, 0.33, 0.75, 0.25)
"""Where on its first curve the label of an edge may stand; the best place first."""
SWEEPS: Final = 6

Key: TypeAlias = tuple[NodeKind, str]
Spot: TypeAlias = "Key | tuple[int, int]"
"""A node, or where the edge of a number passes a layer."""


class Box(NamedTuple):
    """A node at its place."""

    node: Node
    x: float
    y: float


class Line(NamedTuple):
    """An edge as a path; its label stands above `x`, `y`."""

    edge: Edge
    path: str
    width: float
    x: float
    y: float


class Picture(NamedTuple):
    """The graph, with what was left out of it."""

    width: float
    height: float
    boxes: Sequence[Box]
    lines: Sequence[Line]
    left_out: int


def drawn(flow: Flow) -> Picture:
    """What is blocked and what flows most, if there is too much for a picture."""
    nodes = {(node.kind, node.name): node for node in flow.nodes}
    kept = _kept(nodes, flow.edges)
    edges = [edge for edge in flow.edges if edge.source in kept and edge.target in kept]
    level = _levels(kept, edges)
    ways = [_way(number, edge, level) for number, edge in enumerate(edges)]
    layers = _layers(level, ways)
    height = max((sum(map(_height, layer)) for layer in layers), default=0.0)
    places: dict[Spot, tuple[float, float]] = {}
    for column, layer in enumerate(layers):
        x, y = MARGIN + column * (BOX[0] + GAP[0]), MARGIN + (height - sum(map(_height, layer))) / 2
        for spot in layer:
            places[spot] = (x, y)
            y += _height(spot)
    fastest = max((edge.rate for edge in edges), default=0)
    lines: list[Line] = []
    for edge, way in zip(edges, ways, strict=True):
        lines.append(_line(edge, way, places, fastest, lines))
    return Picture(
        2 * MARGIN + max(1, len(layers)) * (BOX[0] + GAP[0]) - GAP[0],
        2 * MARGIN + max(height, BOX[1] + GAP[1]) - GAP[1],
        [Box(nodes[key], *places[key]) for key in level],
        lines,
        len(nodes) - len(kept),
    )


def _kept(nodes: Mapping[Key, Node], edges: Sequence[Edge]) -> set[Key]:
    if len(nodes) <= NODES_MAX:
        return set(nodes)
    found: dict[Key, None] = {}
    for edge in sorted(edges, key=lambda edge: (not edge.is_blocked, -edge.rate)):
        if len({*found, edge.source, edge.target}) > NODES_MAX:
            break
        found.update({edge.source: None, edge.target: None})
    return {key for key in found if key in nodes}


def _levels(keys: set[Key], edges: Sequence[Edge]) -> dict[Key, int]:
    """The longest way to each node. An edge that closes a circle does not count."""
    targets: dict[Key, list[Key]] = {key: [] for key in sorted(keys, key=_name)}
    for edge in edges:
        targets[edge.source].append(edge.target)
    order: list[Key] = []
    is_done: dict[Key, bool] = {}
    back: set[tuple[Key, Key]] = set()
    for start in targets:
        stack = [] if start in is_done else [(start, iter(targets[start]))]
        is_done.setdefault(start, False)
        while stack:
            key, rest = stack[-1]
            target = next(rest, None)
            if target is None:
                is_done[key] = True
                order.append(key)
                stack.pop()
            elif target not in is_done:
                is_done[target] = False
                stack.append((target, iter(targets[target])))
            elif not is_done[target]:
                back.add((key, target))
    level = dict.fromkeys(targets, 0)
    for key in reversed(order):
        for target in targets[key]:
            if (key, target) not in back:
                level[target] = max(level[target], level[key] + 1)
    return level


def _way(number: int, edge: Edge, level: Mapping[Key, int]) -> list[Spot]:
    """An edge takes a place of its own in each layer between, so that it passes no other node."""
    between = range(level[edge.source] + 1, level[edge.target])
    return [edge.source, *((number, one) for one in between), edge.target]


def _layers(level: Mapping[Key, int], ways: Sequence[Sequence[Spot]]) -> list[list[Spot]]:
    """In a layer, what is connected is near."""
    layers: list[list[Spot]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for key, number in level.items():
        layers[number].append(key)
    neighbours: dict[Spot, list[Spot]] = {key: [] for key in level}
    for way in ways:
        for spot in way[1:-1]:
            layers[_column(spot, level)].append(spot)
        for before, after in pairwise(way):
            neighbours.setdefault(before, []).append(after)
            neighbours.setdefault(after, []).append(before)
    for sweep in range(SWEEPS):
        row = {spot: index - len(one) / 2 for one in layers for index, spot in enumerate(one)}
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            means = {spot: _mean([row[one] for one in neighbours[spot]]) for spot in layer}
            layer.sort(key=lambda spot: means[spot])
            row.update({spot: index - len(layer) / 2 for index, spot in enumerate(layer)})
    return layers


def _column(spot: Spot, level: Mapping[Key, int]) -> int:
    first, second = spot
    return second if isinstance(second, int) else level[first, second]  # type: ignore[index]


def _height(spot: Spot) -> float:
    return PASS + GAP[1] if isinstance(spot[1], int) else BOX[1] + GAP[1]


def _line(
    edge: Edge,
    way: Sequence[Spot],
    places: Mapping[Spot, tuple[float, float]],
    fastest: float,
    others: Sequence[Line],
) -> Line:
    middles = [(places[one][0], places[one][1] + (_height(one) - GAP[1]) / 2) for one in way]
    x, y = middles[0][0] + BOX[0], middles[0][1]
    path = f"M{x:g} {y:g}"
    label = _label((x, y), middles[1], others)
    for to_x, to_y in middles[1:]:
        bend = max(GAP[0] / 2, abs(to_x - x) / 2)
        path += f"C{x + bend:g} {y:g} {to_x - bend:g} {to_y:g} {to_x:g} {to_y:g}"
        if (to_x, to_y) != middles[-1]:
            x, y = to_x + BOX[0], to_y
            path += f"H{x:g}"
    share = math.sqrt(edge.rate / fastest) if fastest > 0 else 0
    return Line(edge, path, round(1.5 + 6.5 * share, 1), *label)


def _label(
    start: tuple[float, float], end: tuple[float, float], others: Sequence[Line]
) -> tuple[float, float]:
    """On the curve from one to the other, where no other label is, if there is such a place."""
    (x, y), (to_x, to_y) = start, end
    bend = max(GAP[0] / 2, abs(to_x - x) / 2)
    spots = []
    for share in LABEL_SHARES:
        # The curve of `_line`: its ends are level.
        level = 3 * share**2 - 2 * share**3
        along = 3 * share * (1 - share) * ((1 - share) * (x + bend) + share * (to_x - bend))
        along += (1 - share) ** 3 * x + share**3 * to_x
        spots.append((along, y + level * (to_y - y)))

    def covered(spot: tuple[float, float]) -> float:
        return sum(
            max(0.0, LABEL[0] - abs(spot[0] - one.x)) * max(0.0, LABEL[1] - abs(spot[1] - one.y))
            for one in others
        )

    return min(spots, key=covered)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _name(key: Key) -> tuple[str, str]:
    return key[0].value, key[1]
