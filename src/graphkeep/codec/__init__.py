"""Python values as canonical JSON, by the types a graph declares; what would not come back is refused.

```python
codec = Codec(State, path='state')
encoded = codec.encode(state)                  # parts: {'topic': b'"bees"', 'messages': b'[…]'}
again = codec.encode(state, previous=encoded.parts, seen=encoded.seen)
state = codec.decode(encoded.parts)
```

Pure: no I/O, no `async`, no class name is ever stored.
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
