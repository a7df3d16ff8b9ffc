"""`NodeCodec`: the nodes of a `BaseNode` graph as an id and their inputs."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Literal, cast

from pydantic import BaseModel
from pydantic_graph import BaseNode

from ..errors import CodecError, LossyStateError, UnstorableTypeError
from ..parts import text_of
from ._codec import Codec, Parts
from ._exact import undeclared

__all__ = ('NodeCodec', 'UnknownNodeError')

Node = BaseNode[Any, Any, Any]

_SNAPSHOT_ID = '__snapshot_id'
"""Where pydantic-graph 1.x keeps the id of a snapshot, in the node's own `__dict__`."""


class UnknownNodeError(CodecError, LookupError):
    """A stored node id is not in the graph."""


class NodeCodec:
    """Encodes the nodes of a graph; a node is stored as `{"node": id, "inputs": {…}}`.

    A node's own fields are its inputs, apart from the id: fields called `node_id` or `kind` are
    safe.
    A node class may be a dataclass, a pydantic model, or a class without fields.

    Args:
        nodes: Node classes by id; a generic node may be given as an alias, `Fetch[int]`.
        namespace: Names that forward references in the nodes may use.
        verify: As for `Codec`.

    Raises:
        UnstorableTypeError: A node has a field that cannot be stored, or attributes but no fields.
    """

    def __init__(
        self,
        nodes: Mapping[str, Any],
        *,
        namespace: Mapping[str, Any] | None = None,
        verify: Literal['changed', 'always'] = 'changed',
    ) -> None:
        # A node is encoded when it is to run next, and again when it runs: checked once.
        self._last: dict[str, Parts] = {}
        self._codecs: dict[str, Codec[Any] | _Bare] = {}
        self._ids: dict[type, str] = {}
        for node_id, node in nodes.items():
            cls = cast('type', typing.get_origin(node) or node)
            self._ids[cls] = node_id
            if _has_fields(cls):
                self._codecs[node_id] = Codec[Any](
                    node, path=node_id, namespace=namespace, verify=verify
                )
            else:
                self._codecs[node_id] = _Bare(cls, node_id)

    def has(self, node: object) -> bool:
        """Whether the node's class is one of the graph's."""
        return type(node) in self._ids

    def encode(self, node: Node) -> tuple[str, bytes]:
        """The id of a node and its inputs as a JSON object.

        Raises:
            LossyStateError: The node would not come back as it is, or is not in the graph.
        """
        node_id = self._ids.get(type(node))
        if node_id is None:
            name = type(node).__qualname__
            raise LossyStateError(
                f'The node `{name}` is not in the graph. Nothing was written. Add it to the graph.',
                path=name,
            )
        attributes = vars(node)
        snapshot_id = attributes.pop(_SNAPSHOT_ID, None)
        try:
            previous = self._last.get(node_id)
            # No tails: nothing is passed as seen.
            parts = cast('Parts', self._codecs[node_id].encode(node, previous=previous).parts)
        finally:
            if snapshot_id is not None:
                attributes[_SNAPSHOT_ID] = snapshot_id
        self._last[node_id] = parts
        return node_id, text_of(parts)

    def decode(self, node_id: str, inputs: bytes) -> Node:
        """A new node.

        Raises:
            UnknownNodeError: The graph has no node with this id.
            CodecError: The inputs do not fit the node; `path` says where.
        """
        codec = self._codecs.get(node_id)
        if codec is None:
            known = ', '.join(map(repr, self._codecs))
            raise UnknownNodeError(
                f'The graph has no node {node_id!r}. It has {known}.', path=node_id
            )
        return codec.decode(inputs)


class _Bare:
    """The codec of a class without fields."""

    def __init__(self, cls: type, node_id: str) -> None:
        if cls.__init__ is not object.__init__ or _slots(cls):
            raise UnstorableTypeError(
                f'The node `{node_id}` has its own `__init__` but no declared fields, so what it '
                'holds cannot be stored. Make it a dataclass: add `@dataclass` and declare its '
                'fields.',
                path=node_id,
            )
        self._cls = cls
        self._node_id = node_id

    def encode(self, node: Any, *, previous: Parts | None = None) -> _Empty:
        for name, _ in undeclared(node, ()):
            raise LossyStateError(
                f'`{self._node_id}.{name}` was set on a node without declared fields and would be '
                'lost. Nothing was written. Make the node a dataclass and declare it.',
                path=f'{self._node_id}.{name}',
            )
        return _EMPTY

    def decode(self, parts: bytes) -> Any:
        return self._cls()


@dataclasses.dataclass(frozen=True, slots=True)
class _Empty:
    parts: bytes = b'{}'


_EMPTY = _Empty()


def _has_fields(cls: type[Any]) -> bool:
    return (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, BaseModel)
        or hasattr(cls, '__get_pydantic_core_schema__')
    )


def _slots(cls: type) -> bool:
    return any(vars(each).get('__slots__') for each in cls.__mro__)
