"""How methods and compressors are grouped in the reference: by their axes, read from the facts that they declare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thinwire.core.method import METHODS, Method
from thinwire.lab.records import Row


@dataclass(frozen=True)
class Group:
    """A page of the reference: its file, its heading, and what its members have in common."""

    file: str
    title: str
    about: str


ALL_REDUCE = Group(
    "all-reduce",
    "Gradients, by all-reduce",
    "A ring adds up what ranks send, so that it is linear: 16 bits, or less.",
)
SCATTER_GATHER = Group(
    "scatter-gather",
    "Gradients, by scatter-gather",
    "Each rank owns a shard, averages it, and sends the average on. What a rank sends does not grow with the ranks.",
)
ALL_GATHER = Group(
    "all-gather",
    "Gradients, by all-gather",
    "Every payload goes to every rank, and is compressed once. What a rank sends grows with the ranks.",
)
OTHER = Group("other", "Gradients, by exchanges of their own", "Who talks to whom is part of the method.")
LOCAL = Group(
    "local-steps",
    "Local steps and outer loops",
    "Ranks take several steps by themselves, and exchange how far they came.",
)
SERVERS = Group("servers", "Servers", "Servers keep the model; a rule says when a gradient is used, and who waits.")
GOSSIP = Group("gossip", "Gossip", "Models are exchanged with neighbours on a graph.")
METHOD_GROUPS = (ALL_REDUCE, SCATTER_GATHER, ALL_GATHER, OTHER, LOCAL, SERVERS, GOSSIP)
BY_EXCHANGE = {group.file: group for group in (ALL_REDUCE, SCATTER_GATHER, ALL_GATHER)}

UNBIASED = Group("unbiased", "Unbiased compressors", "Errors average out over steps and ranks; no memory is needed.")
CONTRACTIONS = Group(
    "contractions",
    "Compressors for error feedback",
    "Biased, and contractions: what is lost now is sent later, with `ErrorFeedback` or another memory.",
)
NEITHER = Group(
    "neither",
    "Other compressors",
    "Neither unbiased nor contractions for every vector: for votes, for methods with a memory of their own, or with "
    "bounds that depend on the data.",
)
COMPRESSOR_GROUPS = (UNBIASED, CONTRACTIONS, NEITHER)


def method_group(method: Method) -> Group:
    """The group of a method, from its exchange and its signal.

    >>> method_group(METHODS["qsgd"]()).title, method_group(METHODS["asgd"]()).title
    ('Gradients, by scatter-gather', 'Servers')
    """
    if method.exchange.served:
        return SERVERS
    if method.exchange.scope == "neighbours":
        return GOSSIP
    if method.sync.of.models:
        return LOCAL
    return BY_EXCHANGE.get(method.exchange.name, OTHER)


def methods_by_group() -> dict[Group, list[str]]:
    """The ids of all methods, by group."""
    out: dict[Group, list[str]] = {group: [] for group in METHOD_GROUPS}
    for name in METHODS:
        out[method_group(METHODS[name]())].append(name)
    return out


def compressor_group(rows: Sequence[Row]) -> Group:
    """The group of a compressor, from the rows of its settings in the catalogue."""
    if any(row["unbiased"] for row in rows):
        return UNBIASED
    return CONTRACTIONS if any(row["contraction"] for row in rows) else NEITHER


def compressors_by_group(rows: Mapping[str, Sequence[Row]]) -> dict[Group, list[str]]:
    """The names of compressors, by group."""
    out: dict[Group, list[str]] = {group: [] for group in COMPRESSOR_GROUPS}
    for name, several in rows.items():
        out[compressor_group(several)].append(name)
    return out
