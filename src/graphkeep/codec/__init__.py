"""Python values as canonical JSON, by the types a graph declares, and back without loss.

```python
codec = Codec(State, path='state')
encoded = codec.encode(state)  # parts: {'topic': b'"bees"', 'messages': b'[…]'}
again = codec.encode(state, previous=encoded.parts, seen=encoded.seen)
state = codec.decode(encoded.parts)
```

A value that would not come back as it is raises `LossyStateError`, before anything is written.
Pure: no I/O, no `async`; the name of a class is never stored.
"""

from __future__ import annotations

from ._codec import Codec, Encoded, Parts, Seen
from ._inference import UNSET, infer_types
from ._markers import AppendOnly
from ._nodes import NodeCodec, UnknownNodeError

__all__ = (
    'UNSET',
    'AppendOnly',
    'Codec',
    'Encoded',
    'NodeCodec',
    'Parts',
    'Seen',
    'UnknownNodeError',
    'infer_types',
)
