"""The contract suite in the hands of a third party: as documented, and not to be fooled."""

from __future__ import annotations

import re
import textwrap

import pytest

import graphkeep.testing

STORES = """
from graphkeep.errors import LeaseLostError
from graphkeep.stores.memory import MemoryStore


class MyStore(MemoryStore):
    def __init__(self, path, **options):
        super().__init__(str(path), **options)


class NeverFenced(MyStore):
    async def _append(self, commits):
        for commit in commits:
            row = self._data.rows.get(commit.claim.run_id)
            if row is not None:
                object.__setattr__(commit.claim, 'epoch', row.run.epoch)
        return await super()._append(commits)


class ForgetsNonces(MyStore):
    async def _append(self, commits):
        for commit in commits:
            row = self._data.rows.get(commit.claim.run_id)
            if row is not None:
                row.nonce = 'forgotten'
        return await super()._append(commits)


class CutsTexts(MyStore):
    async def _create(self, run, draft):
        object.__setattr__(draft, 'data', draft.data.replace(b'\\\\u0000', b''))
        return await super()._create(run, draft)


class AlwaysFree(MyStore):
    async def _claim(self, request):
        row = self._data.rows.get(request.run_id)
        if row is not None and request.expected_epoch is None:
            object.__setattr__(request, 'expected_epoch', row.run.epoch)
        return await super()._claim(request)
"""


def documented() -> str:
    """The example in the docstring of the package."""
    found = re.search(r'```python\n(.*?)```', graphkeep.testing.__doc__ or '', re.DOTALL)
    assert found is not None
    return found[1]


def certify(pytester: pytest.Pytester, store: str, mode: str, *args: str) -> pytest.RunResult:
    kept = '        self.kept = MyStore(self.path)  # memory is kept by whoever holds a store\n'
    example = documented().replace('MyStore(', f'{store}(')
    example = example.replace("'runs.my'\n", f"'runs.my'\n{kept}")
    example += '\n    outlives_process = False\n'
    pytester.makepyfile(test_mine=textwrap.dedent(STORES) + example)
    pytester.makeini(
        f"""
        [pytest]
        asyncio_mode = {mode}
        asyncio_default_fixture_loop_scope = function
        filterwarnings = error
        """
    )
    return pytester.runpytest_subprocess('-p', 'no:cacheprovider', '-q', '--strict-markers', *args)


@pytest.mark.parametrize('mode', ['strict', 'auto'])
def test_a_good_store_passes_as_documented(pytester: pytest.Pytester, mode: str) -> None:
    chosen = 'fence or zombie or cancel or byte or prune or again'
    result = certify(pytester, 'MyStore', mode, '-k', chosen)
    outcomes = result.parseoutcomes()
    assert outcomes['passed'] > 20
    assert 'failed' not in outcomes
    assert result.ret == 0


@pytest.mark.parametrize(
    ('store', 'noticed'),
    [
        ('NeverFenced', 'test_a_zombie_cannot_write'),
        ('ForgetsNonces', 'test_the_same_commit_again_is_written_once'),
        ('CutsTexts', 'test_a_state_comes_back_byte_for_byte'),
        ('AlwaysFree', 'test_of_many_claimers_one_wins'),
    ],
)
def test_a_store_that_breaks_a_promise_is_noticed(
    pytester: pytest.Pytester, store: str, noticed: str
) -> None:
    result = certify(pytester, store, 'strict', '-k', noticed)
    outcomes = result.parseoutcomes()
    assert outcomes['failed'] >= 1
    assert 'errors' not in outcomes


def test_its_asserts_are_explained(pytester: pytest.Pytester) -> None:
    result = certify(pytester, 'NeverFenced', 'strict', '-k', 'test_a_zombie_cannot_write')
    result.stdout.fnmatch_lines(['E*where False = isinstance(None, LeaseLostError)'])
