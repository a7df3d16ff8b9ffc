"""The contract that every store passes, ours and third parties'.

A store certifies itself by a test class that says how a store is made. It needs pytest and
pytest-asyncio:

```python
import pytest
from graphkeep.testing import StoreContract


class TestMyStore(StoreContract):
    @pytest.fixture(autouse=True)
    def database(self, tmp_path):
        self.path = tmp_path / 'runs.my'

    def make_store(self, **options):
        return MyStore(self.path, **options)
```

Each test needs a database that no other test has written to. Run what writes, `CommitContract`, in
its hostile modes as well: `ttl = 0.0` (every lease has passed at once), `always_full = True` (every
snapshot is a full one), `reclaims = True` (every step begins with a new claim), and a store class
whose `max_batch_commits` is 1.
"""

from __future__ import annotations

try:
    import pytest
except ImportError as e:
    raise ImportError('graphkeep.testing needs pytest and pytest-asyncio') from e

pytest.register_assert_rewrite(
    *(
        f'{__name__}.{part}'
        for part in (
            '_answering',
            '_asking',
            '_calls',
            '_claimable',
            '_claiming',
            '_committing',
            '_conversing',
            '_creating',
            '_ending',
            '_finding',
            '_leasing',
            '_payloads',
            '_reading',
            '_talks',
            '_together',
            '_worker',
        )
    )
)

from ._answering import Answering  # noqa: E402
from ._asking import Asking  # noqa: E402
from ._calls import eventually  # noqa: E402
from ._claimable import Claimable  # noqa: E402
from ._claiming import Claiming  # noqa: E402
from ._committing import Committing  # noqa: E402
from ._conversing import Conversing  # noqa: E402
from ._creating import Creating  # noqa: E402
from ._ending import Ending  # noqa: E402
from ._finding import Finding  # noqa: E402
from ._leasing import Leasing  # noqa: E402
from ._payloads import Payloads  # noqa: E402
from ._reading import Reading  # noqa: E402
from ._together import Together  # noqa: E402
from ._worker import Worker  # noqa: E402

__all__ = ('CommitContract', 'StoreContract', 'Worker', 'eventually')


class CommitContract(Committing, Reading, Ending, Together, Answering):
    """The part of the contract that is worth running in hostile modes as well."""


class StoreContract(
    CommitContract, Creating, Claimable, Claiming, Leasing, Finding, Payloads, Asking, Conversing
):
    """What a store has to pass. Subclass it, name the subclass `Test…`, and write `make_store`."""
