"""Control flow of a function: basic blocks and the order in which divergent lanes visit them.

Order: Bourdoncle, "Efficient chaotic iteration strategies with widenings" (1993), section 3.1: a
weak topological order. Strongly connected parts (loops) are contiguous, each begins with its head,
and whatever lies outside follows. A warp that always runs its first fragment in this order
reconverges at the immediate post-dominator or earlier (Diamos et al., "SIMD re-convergence at
thread frontiers", MICRO 2011).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def weak_topological_order(successors: Sequence[Sequence[int]], entry: int = 0) -> list[int]:
    """Nodes reachable from the entry, in a weak topological order."""
    return _ordered(set(_reachable(successors, entry)), successors, entry)


def _reachable(successors: Sequence[Sequence[int]], entry: int) -> Iterable[int]:
    seen, pending = {entry}, [entry]
    while pending:
        for other in successors[pending.pop()]:
            if other not in seen:
                seen.add(other)
                pending.append(other)
    return seen


def _ordered(nodes: set[int], successors: Sequence[Sequence[int]], entry: int) -> list[int]:
    order: list[int] = []
    pending = [(nodes, entry)]  # parts still to be laid out, the next one last
    while pending:
        part, head = pending.pop()
        if part == {head}:
            order.append(head)
            continue
        components = _components(part, successors, head)
        if len(components) > 1:
            parts = [(c, _head(c, successors, part, head)) for c in components]
        else:  # a loop: its head first, then its inside without the edges back
            order.append(head)
            parts = _inside(part - {head}, successors, head)
        pending += reversed(parts)
    return order


def _inside(
    nodes: set[int], successors: Sequence[Sequence[int]], head: int
) -> list[tuple[set[int], int]]:
    """(component, head) pairs of a loop without its head, in topological order."""
    around = nodes | {head}
    forward = [[n for n in following if n != head] for following in successors]
    components = _components(around, forward, head)
    return [(c, _head(c, forward, around, head)) for c in components if head not in c]


def _head(
    component: set[int], successors: Sequence[Sequence[int]], part: set[int], entry: int
) -> int:
    """The node of a component that is entered from outside of it; the smallest if several are."""
    if entry in component:
        return entry
    entered = [
        other for node in part - component for other in successors[node] if other in component
    ]
    return min(entered) if entered else min(component)


def _components(nodes: set[int], successors: Sequence[Sequence[int]], entry: int) -> list[set[int]]:
    """Strongly connected components reachable from the entry, in topological order (Tarjan)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[set[int]] = []
    work: list[tuple[int, int]] = [(entry, 0)]
    while work:
        node, position = work.pop()
        if position == 0:
            index[node] = low[node] = len(index)
            stack.append(node)
            on_stack.add(node)
        targets = [n for n in successors[node] if n in nodes]
        descended = False
        while position < len(targets):
            other = targets[position]
            position += 1
            if other not in index:
                work += [(node, position), (other, 0)]
                descended = True
                break
            if other in on_stack:
                low[node] = min(low[node], index[other])
        if descended:
            continue
        if low[node] == index[node]:
            component: set[int] = set()
            while node not in component:
                member = stack.pop()
                on_stack.discard(member)
                component.add(member)
            found.append(component)
        if work:
            parent = work[-1][0]
            low[parent] = min(low[parent], low[node])
    return found[::-1]
