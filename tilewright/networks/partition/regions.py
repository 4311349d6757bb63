"""Group the operators that are not compiled into regions, which onnxruntime runs.

Every operator gets a level: an even one if it is compiled, an odd one otherwise. The level
increases on each path from the inputs wherever the path changes between compiled and other
operators. A path that leaves a level therefore never returns to it, so connected operators of one
level can run together as one region.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from tilewright.networks.macs import Operands, count
from tilewright.networks.onnx.files import COMPUTABLE, node_reads
from tilewright.networks.onnx.graph import NormalGraph, Shape, data_inputs

NOTHING = "no operator of the network has a kernel"
"""Reason that is shown if no operator of the network has a kernel."""
LAST = -1
"""Level of operators on whose results no compiled operator depends. They run after all compiled
code."""


@dataclass(frozen=True)
class Cause:
    """An operator that is not compiled, with the reason.

    Attributes:
        name: its name.
        operator: its ONNX type.
        reason: why it is not compiled.
    """

    name: str
    operator: str
    reason: str


@dataclass(frozen=True)
class Region:
    """Operators that onnxruntime runs as one model.

    Attributes:
        nodes: their names in execution order.
        inputs: names of the tensors that the region reads.
        outputs: names of the tensors that the region writes.
        last: True if no compiled operator depends on the region, so that it runs after all compiled
            code. The shapes of its outputs may then depend on values of tensors.
        causes: the operators of the region that cannot be compiled. The other operators were added
            to the region so that fewer tensors pass between compiled code and onnxruntime.
    """

    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    last: bool
    causes: tuple[Cause, ...]


def find_regions(normal: NormalGraph, reasons: Mapping[str, str]) -> list[Region]:
    """Partition a graph with static input shapes into compiled code and onnxruntime regions.

    Args:
        normal: the graph. Operators whose inputs or outputs have no static shape are not compiled.
        reasons: reason why an operator is not compiled, by operator name.

    Returns:
        The regions in an order in which they can run.
    """
    return _Partitioner(normal, reasons).regions()


def whole_region(normal: NormalGraph, regions: Iterable[Region]) -> Region:
    """Return one region that contains all operators of a graph.

    Args:
        normal: the graph.
        regions: the regions into which the graph was partitioned. The reasons why their operators
            are not compiled are kept.
    """
    causes = tuple(cause for region in regions for cause in region.causes)
    return Region(
        tuple(node.name for node in normal.graph.node),
        tuple(info.name for info in data_inputs(normal.model)),
        tuple(info.name for info in normal.graph.output),
        True,
        causes,
    )


@dataclass
class _Node:
    """A node of the graph.

    Attributes:
        name: its name.
        operator: its ONNX type.
        reads: names of the tensors that it reads, without constants.
        writes: names of the tensors that it writes.
        multiplies: True if it has multiply-accumulates.
        before: indices of the nodes whose results it reads.
        after: indices of the nodes that read its results.
    """

    name: str
    operator: str
    reads: frozenset[str]
    writes: tuple[str, ...]
    multiplies: bool
    before: set[int] = field(default_factory=set)
    after: set[int] = field(default_factory=set)


class _Partitioner:
    """Decides which operators onnxruntime runs, and groups them into regions.

    At first, onnxruntime runs only the operators that cannot be compiled. Further operators are
    then moved to onnxruntime until the regions are valid, and until no further move reduces the
    number of tensors that pass between compiled code and onnxruntime.

    Args:
        normal: the graph.
        reasons: reason why an operator is not compiled, by operator name.
    """

    def __init__(self, normal: NormalGraph, reasons: Mapping[str, str]) -> None:
        self._shapes, self._types = normal.shapes(), normal.types()
        self._constants = set(normal.tensors())
        self._outputs = {info.name for info in normal.graph.output}
        self._nodes = [self._node(node) for node in normal.graph.node]
        makers = {name: i for i, node in enumerate(self._nodes) for name in node.writes}
        for i, node in enumerate(self._nodes):
            node.before = {makers[name] for name in node.reads if name in makers}
            for j in node.before:
                self._nodes[j].after.add(i)
        self._makers = makers
        self._reasons = {
            i: reasons[node.name] for i, node in enumerate(self._nodes) if node.name in reasons
        }
        for i, node in enumerate(self._nodes):
            if unknown := self._not_passable((*sorted(node.reads), *node.writes)):
                self._reasons[i] = self._why_not_passable(unknown)
        self._outside = set(self._reasons)

    def regions(self) -> list[Region]:
        """Move operators to onnxruntime until no further move is needed, and return the regions."""
        while self._absorb_between() or self._absorb_behind() or self._absorb_small():
            pass
        ordered = sorted(
            self._groups(), key=lambda group: (group.level == LAST, group.level, group.nodes)
        )
        return [self._region(group) for group in ordered]

    def _node(self, node: onnx.NodeProto) -> _Node:
        equation = next((a.s.decode() for a in node.attribute if a.name == "equation"), "")
        known = [self._shapes.get(name) for name in node.input]
        output: Shape = self._shapes.get(node.output[0], ()) if node.output else ()
        macs = count(node.op_type, Operands(known, output, equation))
        reads = frozenset(node_reads(node)) - self._constants
        writes = tuple(name for name in node.output if name)
        return _Node(node.name, node.op_type, reads, writes, macs > 0)

    def _not_passable(self, names: Iterable[str]) -> str:
        """Return the first of some tensors that cannot pass between compiled code and onnxruntime.

        Args:
            names: names of the tensors.

        Returns:
            The name of the tensor, or "" if all can pass.
        """
        return next((name for name in names if not self._is_passable(name)), "")

    def _why_not_passable(self, name: str) -> str:
        shape = self._shapes.get(name)
        if self._types.get(name) not in COMPUTABLE:
            return f"'{name}' is not a tensor of a supported type"
        if shape is None:
            return f"the shape of '{name}' depends on values of tensors"
        return (
            f"'{name}' has the shape {shape}, which has no elements; if 0 stands for an "
            "unknown size, set it with --input-shape"
        )

    def _is_passable(self, name: str) -> bool:
        # TVM cannot compile kernels for empty tensors, and does not support every element type.
        shape = self._shapes.get(name)
        return shape is not None and 0 not in shape and self._types.get(name) in COMPUTABLE

    def _clusters(self) -> list[set[int]]:
        """Return the sets of operators that must run in the same region.

        The operators of a set exchange tensors that cannot pass between compiled code and
        onnxruntime.

        Returns:
            Sets of node indices.
        """
        cluster_by_node: dict[int, set[int]] = {}
        for i, node in enumerate(self._nodes):
            for name in node.writes:
                if self._is_passable(name):
                    continue
                readers = {j for j in node.after if name in self._nodes[j].reads}
                cluster = {i}.union(readers, *(cluster_by_node.get(j, ()) for j in (i, *readers)))
                cluster_by_node.update(dict.fromkeys(cluster, cluster))
        return list({id(cluster): cluster for cluster in cluster_by_node.values()}.values())

    def _levels(self) -> list[int]:
        """Return the level of each node, which states where changes to and from onnxruntime occur.

        The level increases with each change between compiled code and onnxruntime; see the module's
        documentation. The nodes are in topological order.
        """
        clusters = self._clusters()
        cluster_of = {i: n for n, cluster in enumerate(clusters) for i in cluster}
        least = [0] * len(clusters)
        while True:  # repeat until each cluster has the level of its last operator
            levels: list[int] = []
            for i, node in enumerate(self._nodes):
                outside = i in self._outside
                level = max(int(outside), least[cluster_of[i]] if i in cluster_of else 0)
                for j in node.before:
                    # Each change between compiled code and onnxruntime begins a new level.
                    level = max(level, levels[j] + ((j in self._outside) != outside))
                levels.append(level)
            highest = [max(levels[i] for i in cluster) for cluster in clusters]
            if highest == least:
                return levels
            least = highest

    def _groups(self) -> list[_Group]:
        """Return the groups of connected operators that are not compiled."""
        levels, early = self._levels(), self._early()
        # Operators that leave their group, because their results cannot be passed.
        late: set[int] = set()
        for i in sorted(self._outside - early):
            node = self._nodes[i]
            if self._not_passable(node.writes) or not late.isdisjoint(node.before):
                late.add(i)
                levels[i] = LAST
        for group in self._connected_components(levels):
            # No compiled operator depends on the group, so that it can run after all compiled code.
            if early.isdisjoint(group.nodes):
                for i in group.nodes:
                    levels[i] = LAST
        return self._connected_components(levels)

    def _connected_components(self, levels: Sequence[int]) -> list[_Group]:
        """Return the connected groups of operators in onnxruntime that have the same level.

        Args:
            levels: level of each node.
        """
        groups: list[_Group] = []
        seen: set[int] = set()
        for start in sorted(self._outside):
            if start in seen:
                continue
            members, waiting = {start}, [start]
            while waiting:
                node = self._nodes[waiting.pop()]
                for j in (*node.before, *node.after):
                    if j in self._outside and levels[j] == levels[start] and j not in members:
                        members.add(j)
                        waiting.append(j)
            seen |= members
            groups.append(_Group(levels[start], tuple(sorted(members))))
        return groups

    def _early(self) -> set[int]:
        """Return the nodes in onnxruntime on which compiled operators depend.

        They cannot wait until all compiled code has run.

        Returns:
            Node indices.
        """
        clusters, early = self._clusters(), set[int]()
        while True:
            size = len(early)
            # In reverse order, one pass follows whole chains. Clusters may require further passes.
            for i in reversed(range(len(self._nodes))):
                after = self._nodes[i].after
                if i in self._outside and any(j not in self._outside or j in early for j in after):
                    early.add(i)
            for cluster in clusters:
                if not early.isdisjoint(cluster):
                    early |= cluster
            if len(early) == size:
                return early

    def _reached(self, start: Iterable[int], *, backwards: bool = False) -> set[int]:
        """Return all nodes that depend on some nodes, directly or indirectly.

        Args:
            start: indices of the nodes.
            backwards: return all nodes on which the nodes in `start` depend instead.
        """
        reached: set[int] = set()
        waiting = list(start)
        while waiting:
            node = self._nodes[waiting.pop()]
            new = (node.before if backwards else node.after) - reached
            reached |= new
            waiting += new
        return reached

    def _absorb(self, nodes: Iterable[int]) -> bool:
        """Move operators to onnxruntime.

        Args:
            nodes: indices of the operators. Some may already run in onnxruntime.

        Returns:
            True if an operator was moved.
        """
        new = set(nodes) - self._outside
        self._outside |= new
        return bool(new)

    def _absorb_between(self) -> bool:
        """Move operators to onnxruntime that lie between operators of the same region.

        These are the operators on a path between two operators that must run in the same region.

        Returns:
            True if an operator was moved.
        """
        between = [
            self._reached(cluster) & self._reached(cluster, backwards=True)
            for cluster in self._clusters()
        ]
        return self._absorb(set[int]().union(*between))

    def _absorb_behind(self) -> bool:
        """Move operators to onnxruntime that depend on a region that has to run last.

        A region has to run last if it writes a network output that cannot be passed to compiled
        code, for example because its shape depends on values of tensors.

        Returns:
            True if an operator was moved.
        """
        early = self._early()
        for cluster in self._clusters():
            names = [name for i in cluster & early for name in self._nodes[i].writes]
            if any(name in self._outputs and not self._is_passable(name) for name in names):
                everything = range(len(self._nodes))
                # If moving the operators that depend on the cluster is not enough, nothing is
                # compiled.
                return self._absorb(self._reached(cluster)) or self._absorb(everything)
        return False

    def _absorb_small(self) -> bool:
        """Move groups of compiled operators without multiplications to onnxruntime.

        A connected group is moved if this reduces the number of tensors that pass between compiled
        code and onnxruntime.

        Returns:
            True if an operator was moved.
        """
        levels = self._levels()
        seen: set[int] = set()
        changed = False
        for start in range(len(self._nodes)):
            if start in self._outside or start in seen:
                continue
            members, waiting = {start}, [start]
            while waiting:
                node = self._nodes[waiting.pop()]
                for j in (*node.before, *node.after):
                    if j not in self._outside and levels[j] == levels[start] and j not in members:
                        members.add(j)
                        waiting.append(j)
            seen |= members
            if any(self._nodes[i].multiplies for i in members):
                continue
            now, then = self._transfers(members)
            if then < now:
                changed = self._absorb(members) or changed
        return changed

    def _transfers(self, members: set[int]) -> tuple[int, int]:
        """Count the tensors that pass between compiled code and regions, before and after a move.

        Args:
            members: a connected component of compiled operators that may move to onnxruntime.

        Returns:
            The number of tensors between the component and regions, which the move removes, and the
            number between the component and other compiled code, which the move adds.
        """
        read = {name for i in members for name in self._nodes[i].reads if name in self._makers}
        read = {name for name in read if self._makers[name] not in members}
        outside = {name for name in read if self._makers[name] in self._outside}
        now, then = len(outside), len(read - outside)
        for i in members:
            for name in self._nodes[i].writes:
                readers = [
                    j for j in self._nodes[i].after - members if name in self._nodes[j].reads
                ]
                now += any(j in self._outside for j in readers)
                then += any(j not in self._outside for j in readers)
        return now, then

    def _region(self, group: _Group) -> Region:
        members = [self._nodes[i] for i in group.nodes]
        written = {name for node in members for name in node.writes}
        inputs = dict.fromkeys(
            name for node in members for name in sorted(node.reads) if name not in written
        )
        inside = set(group.nodes)
        outputs = [
            name
            for i in group.nodes
            for name in self._nodes[i].writes
            if name in self._outputs
            or any(name in self._nodes[j].reads for j in self._nodes[i].after - inside)
        ]
        causes = tuple(
            Cause(self._nodes[i].name, self._nodes[i].operator, self._reasons[i])
            for i in group.nodes
            if i in self._reasons
        )
        return Region(
            tuple(node.name for node in members), tuple(inputs), tuple(outputs),
            group.level == LAST, causes,
        )  # fmt: skip


@dataclass(frozen=True)
class _Group:
    """Connected operators of one level that are not compiled.

    Attributes:
        level: the level.
        nodes: indices of the operators.
    """

    level: int
    nodes: tuple[int, ...]
