"""Which JSON texts hold a lone surrogate: against a reader that takes one token after the other,
and against pydantic, which refuses to load them.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from graphkeep.codec import Codec
from graphkeep.codec._surrogates import has_lone

TOKEN = re.compile(
    rb'\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    rb'|\\u(?P<lone>[dD][89a-fA-F][0-9a-fA-F]{2})'
    rb'|\\.|[^\\]',
    re.DOTALL,
)
PIECES = [
    *(r'\ud83d', r'\uDBFF', r'\ude00', r'\uDfFf', r'\uD7ff', r'\ue000', r'\u00e9', r'\u0000'),
    *(r'\\', r'\n', r'\"', 'ud83d', 'u', 'd', 'é', '\U0010ffff', '\ufffd', ' '),
]


def texts() -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(PIECES), max_size=12).map(
        lambda pieces: f'"{"".join(pieces)}"'.encode()
    )


def lone_by_token(text: bytes) -> bool:
    tokens = list(TOKEN.finditer(text))
    assert b''.join(token[0] for token in tokens) == text
    return any(token['lone'] for token in tokens)


@given(texts())
def test_a_lone_surrogate_is_found_however_many_backslashes_stand_around(text: bytes) -> None:
    assert has_lone(text) == has_lone(bytearray(text)) == lone_by_token(text)


@given(texts())
def test_pydantic_refuses_every_text_with_a_lone_surrogate_and_no_other(text: bytes) -> None:
    for held in (text, b'{"a":[%b]}' % text, b'{%b:1}' % text):
        try:
            from_json(held)
        except ValueError:
            assert has_lone(held)
        else:
            assert not has_lone(held)


@given(texts())
def test_what_is_stored_is_loaded_and_stored_again_as_it_is(text: bytes) -> None:
    codec = Codec[Any](Any, path='s')
    value = codec.decode(text)
    parts = codec.encode(value).parts
    assert isinstance(parts, bytes)
    assert codec.decode(parts) == value


@pytest.mark.parametrize('before', ['', '\\' * 2_000, 'C:\\users\\ude00 ' * 200])
def test_backslashes_before_a_lone_surrogate_do_not_hide_it(before: str) -> None:
    codec = Codec[str](str, path='s')
    value = before + '\ud83d'
    parts = codec.encode(value).parts
    assert isinstance(parts, bytes)
    assert parts.endswith(rb'\ud83d"')
    assert has_lone(parts)
    assert codec.decode(parts) == value
    assert not has_lone(parts.replace(rb'\ud83d"', b'"'))
