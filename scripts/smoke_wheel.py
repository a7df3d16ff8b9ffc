"""Uses an installed graphkeep, not the source tree: packaged data, no drivers, one kept run."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from pydantic_graph import BaseNode, End, Graph, GraphRunContext

import graphkeep


@dataclass
class State:
    count: int = 0


@dataclass
class Step(BaseNode[State, None, int]):
    async def run(self, ctx: GraphRunContext[State]) -> Step | End[int]:
        ctx.state.count += 1
        return End(ctx.state.count) if ctx.state.count == 3 else Step()


graph = Graph(nodes=[Step], state_type=State)


async def main() -> None:
    for url in ('memory://', 'sqlite:///smoke.db'):
        async with graphkeep.open_store(url) as store:
            result = await graph.run(Step(), state=State(), persistence=store.persistence('one'))
            assert result.output == 3, result
            run = await store.run('one')
            assert run is not None, url
            assert run.status == 'done', run


assert importlib.util.find_spec('asyncpg') is None, 'this environment has a driver'
assert importlib.util.find_spec('redis') is None, 'this environment has a driver'
package = Path(str(resources.files(graphkeep)))
assert package.is_relative_to(sys.prefix), f'{package} is not the wheel'
assert (package / 'py.typed').is_file(), 'py.typed is missing'
for pattern in ('stores/sql/*.sql', 'stores/lua/*.lua'):
    assert list(package.glob(pattern)), f'{pattern} is missing'
try:
    graphkeep.open_store('postgresql://127.0.0.1/none')
except graphkeep.MissingDriverError as error:
    assert 'graphkeep[postgres]' in str(error), error
else:
    raise AssertionError('a missing driver was not told')
asyncio.run(main())
print('wheel', importlib.metadata.version('graphkeep'), 'works')
