"""What a codec promises: parts, paths, canonical bytes, and how little it loads back."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import InitVar, dataclass, field, make_dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WrapValidator,
)

from graphkeep.codec import Codec
from graphkeep.errors import CodecError, LossyStateError, UnstorableTypeError
from tests.codec_classes import (
    PARIS,
    Aliased,
    Cat,
    Color,
    Configured,
    Counted,
    Derived,
    Dog,
    Draft,
    Excluding,
    Item,
    Open,
    Pet,
    Private,
    Probe,
    SpecialItem,
    Tree,
    Word,
    same,
)


class Client:
    pass


@dataclass
class Inner:
    clients: dict[str, list[Client]]


class Arbitrary(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    client: Client | None = None


@dataclass
class NeedsInitVar:
    a: int
    factor: InitVar[int]


@dataclass
class Undefined:
    later: Nowhere  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ('type_', 'path'),
    [
        (threading.Lock, 'state.it'),
        (Client, 'state.it'),
        (Client | None, 'state.it'),
        (list[Client], 'state.it[…]'),
        (Inner, 'state.it.clients[…][…]'),
        (Arbitrary, 'state.it.client'),
        (Callable[[], int], 'state.it'),
        (Iterable[int], 'state.it'),
        (type[Item], 'state.it'),
        (NeedsInitVar, 'state.it.factor'),
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_refused_when_bound(type_: Any, path: str) -> None:
    holder = make_dataclass('State', [('n', int), ('it', type_)])
    with pytest.raises(UnstorableTypeError) as caught:
        Codec[Any](holder, path='state')
    assert caught.value.path == path
    assert path in str(caught.value)
    if type_ is not NeedsInitVar:
        assert '`deps`' in str(caught.value)


def test_a_name_that_does_not_resolve_is_refused_when_bound() -> None:
    with pytest.raises(UnstorableTypeError, match=r'Nowhere.*namespace='):
        Codec(Undefined, path='state')
    assert Codec(Undefined, path='state', namespace={'Nowhere': int}).encode(Undefined(1)).parts


def test_a_namespace_wins_over_the_module() -> None:
    @dataclass
    class Item:
        name: str

    @dataclass
    class Order:
        item: Item

    codec = Codec(Order, path='state', namespace=locals())
    order = Order(Item('x'))  # pyright: ignore[reportArgumentType]
    assert codec.decode(codec.encode(order).parts) == order  # pyright: ignore[reportArgumentType]


def test_a_subclass_of_the_declared_state_is_refused() -> None:
    with pytest.raises(LossyStateError, match='`SpecialItem`, but `Item` is declared') as caught:
        Codec(Item, path='state').encode(SpecialItem(price=1))
    assert caught.value.path == 'state'


def test_parts_are_the_top_level_keys_in_declared_order() -> None:
    assert Codec(Aliased, path='state').encode(Aliased(fromName='x', o=3)).parts == {  # pyright: ignore[reportCallIssue]
        'from_name': b'"x"',
        'other': b'3',
    }
    assert Codec(Draft, path='state').encode({'pages': 1, 'title': 'x'}).parts == {
        'title': b'"x"',
        'pages': b'1',
    }
    assert Codec(dict[str, int], path='state').encode({'b': 1, 'a "q"\\': 2}).parts == {
        'b': b'1',
        'a "q"\\': b'2',
    }
    assert Codec(list[int], path='state').encode([1]).parts == b'[1]'
    assert Codec(Open, path='s').encode(Open(a=1, z={'y': ','})).parts == {  # pyright: ignore[reportCallIssue]
        'a': b'1',
        'z': b'{"y":","}',
    }
    assert Codec(dict[str, int], path='state').encode({}).parts == {}


def test_stored_form_of_what_json_has_no_form_for() -> None:
    parts = Codec(Configured, path='state').encode(
        Configured(b=b'\xff', f=float('nan'), t=timedelta(days=1))
    )
    assert parts.parts == {'b': b'"_w=="', 'f': b'"NaN"', 't': b'"P1D"'}
    assert Codec(str, path='s').encode('\x00\ud800').parts == b'"\\u0000\\ud800"'


def test_sets_have_one_order_in_every_process() -> None:
    code = (
        'from graphkeep.codec import Codec\n'
        'value = {"x": {frozenset("abc"), frozenset("de"), frozenset()}}\n'
        'codec = Codec(dict[str, set[frozenset[str]]], path="state")\n'
        'print(codec.encode(value).parts)\n'
    )
    printed = {
        subprocess.run(
            [sys.executable, '-c', code],
            env={**os.environ, 'PYTHONHASHSEED': str(seed)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in range(4)
    }
    assert printed == {"""{'x': b'[["a","b","c"],["d","e"],[]]'}\n"""}


def test_what_does_not_fit_on_loading_names_the_path() -> None:
    codec = Codec(Tree, path='state')
    with pytest.raises(CodecError, match=r'stored as `state.children') as caught:
        codec.decode({'value': b'1', 'children': b'[{"value":1},{"value":"x"}]'})
    assert caught.value.path == 'state.children[1].value'
    with pytest.raises(CodecError):
        codec.decode(b'{"value":')


def test_fields_may_be_renamed_with_a_validation_alias() -> None:
    class Renamed(BaseModel):
        subject: str = Field(validation_alias='topic')

    codec = Codec(Renamed, path='state')
    assert codec.decode({'topic': b'"old"'}) == codec.decode({'subject': b'"old"'})


def test_private_attributes_are_not_kept() -> None:
    value = Private(a=1)
    value._p = 5
    codec = Codec(Private, path='state')
    assert codec.decode(codec.encode(value).parts)._p == 0  # pyright: ignore[reportArgumentType]


def test_init_false_fields_are_restored() -> None:
    value = Counted(1)
    value.count = 9
    codec = Codec(Counted, path='state')
    assert codec.decode(codec.encode(value).parts) == value  # pyright: ignore[reportArgumentType]


def test_a_fold_in_local_time_is_kept_as_wall_clock_and_offset() -> None:
    codec = Codec(datetime, path='state')
    value = datetime(2025, 10, 26, 2, 30, tzinfo=PARIS, fold=1)
    back = codec.decode(codec.encode(value).parts)  # pyright: ignore[reportArgumentType]
    assert (back.replace(tzinfo=None), back.utcoffset()) == (
        value.replace(tzinfo=None, fold=0),
        value.utcoffset(),
    )


def test_decoded_values_share_nothing() -> None:
    codec = Codec(Tree, path='state')
    parts: Any = codec.encode(Tree(1, [Tree(2)])).parts
    one, two = codec.decode(parts), codec.decode(parts)
    one.children.append(Tree(3))
    assert len(two.children) == 1


@pytest.mark.parametrize(
    ('value', 'name'), [(Derived(2), 'twice'), (Excluding(a=1), 'hidden')], ids=['init', 'exclude']
)
def test_a_field_that_is_never_dumped_is_looked_at_all_the_same(value: Any, name: str) -> None:
    """Its change shows in no byte."""
    holder = make_dataclass('Holder', [('items', list[type(value)])])
    for type_, held in ((type(value), value), (holder, holder([value]))):
        codec = Codec[Any](type_, path='state')
        parts: Any = codec.encode(held).parts
        codec.encode(held, previous=parts)
        target = held if type_ is not holder else held.items[0]
        setattr(target, name, 77)
        with pytest.raises(LossyStateError) as caught:
            codec.encode(held, previous=parts)
        assert caught.value.path.endswith(name)
        setattr(target, name, 4 if name == 'twice' else 0)


def test_of_a_list_only_elements_that_changed_are_loaded_back() -> None:
    """`one` is loaded back every time: its class proves nothing, and equal bytes prove nothing."""

    @dataclass
    class State:
        one: Annotated[int, Probe]
        many: list[Annotated[int, Probe]]
        n: int = 0

    codec = Codec(State, path='state', namespace=locals())
    state = State(1, list(range(100)))
    parts: Any = codec.encode(state).parts

    def loads() -> int:
        Probe.loaded = 0
        nonlocal parts
        parts = codec.encode(state, previous=parts).parts
        return Probe.loaded

    assert loads() == 1
    state.n += 1
    assert loads() == 1
    state.one = 2
    assert loads() == 1
    state.many.append(7)
    assert loads() == 2
    state.many[50] = 77
    assert loads() == 2
    del state.many[10:12]
    assert loads() == 1
    state.many.insert(3, 1000)
    assert loads() == 2
    strict = Codec(State, path='state', namespace=locals(), verify='always')
    Probe.loaded = 0
    strict.encode(state, previous=parts)
    assert Probe.loaded == 1 + len(state.many)


class _Held(BaseModel):
    x: int = 0


class _Heir(_Held):
    y: int = 5


@pytest.mark.parametrize(
    ('type_', 'first', 'then'),
    [
        (_Held, _Held(), _Heir()),
        (list[_Held], [_Held(), _Held()], [_Held(), _Heir()]),
        (Any, [1, 2], (1, 2)),
        (Any, {'x': 0}, _Held()),
        (Any, '1.0', Decimal('1.0')),
        (Any, {'1': 2}, {1: 2}),
        (float | str, 'NaN', float('nan')),
        (list[int], [1], (1,)),
        (set[int], {1}, frozenset({1})),
    ],
)
def test_another_value_that_dumps_to_the_same_is_refused(type_: Any, first: Any, then: Any) -> None:
    """Bytes that have not changed prove nothing: it would come back as what was there before."""
    state_type = make_dataclass('State', [('v', type_)])
    codec = Codec(state_type, path='state')
    state = state_type(first)
    parts: Any = codec.encode(state).parts
    state.v = then
    with pytest.raises(LossyStateError, match=r'state\.v'):
        codec.encode(state, previous=parts)


def test_a_large_state_keeps_the_peak_of_memory_low() -> None:
    @dataclass
    class State:
        texts: list[dict[str, str]]

    state = State([{'text': f'{n:07}' + 'x' * 993} for n in range(20_000)])
    codec = Codec(State, path='state', namespace=locals())
    codec.encode(State([]))
    gc.collect()
    tracemalloc.start()
    parts: Any = codec.encode(state).parts
    _, peak = tracemalloc.get_traced_memory()
    size = len(parts['texts'])
    tracemalloc.stop()
    assert size > 20_000_000
    assert peak < 3 * size
    assert codec.decode(parts) == state


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**63)
    | st.floats()
    | st.text(st.characters(codec=None), max_size=5)
    | st.sampled_from(['\ud800', '\udc00', '\U0010ffff', '\ufffd\ufffd\ufffd', 'NaN', Word.YES])
)
natural = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec=None), max_size=3), inner, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=8,
)


@given(natural)
@settings(max_examples=400, deadline=None)
def test_undeclared_values_come_back_or_are_refused(value: Any) -> None:
    codec = Codec[Any](Any, path='state')
    try:
        parts = codec.encode(value).parts
    except LossyStateError:
        return
    assert same(codec.decode(parts), value)  # pyright: ignore[reportArgumentType]


def outcome(codec: Codec[Any], value: Any) -> Any:
    try:
        return codec.encode(value).parts
    except LossyStateError as error:
        return error.path


class Closed(BaseModel):
    i: int = 0
    f: float = 0.0
    s: str = ''
    b: bool = False
    n: int | str | bool | None = None
    c: Color = Color.RED
    d: list[datetime] = []
    m: dict[int, tuple[str, ...]] = {}
    q: Pet | None = None


@given(
    st.fixed_dictionaries(
        {},
        optional={
            'i': scalars,
            'f': scalars,
            's': scalars,
            'b': scalars,
            'n': scalars,
            'c': st.sampled_from([Color.RED, 'r', Word.YES]),
            'd': st.lists(st.datetimes(timezones=st.none() | st.timezones()), max_size=2),
            'm': st.dictionaries(st.integers() | st.booleans(), st.tuples(scalars), max_size=2),
            'q': st.sampled_from([None, Cat(), Dog(), Item(price=1)]),
        },
    )
)
@settings(max_examples=400, deadline=None)
def test_what_is_let_through_unchecked_comes_back(fields: dict[str, Any]) -> None:
    """The predicate that spares a value from being loaded back must never be wrong."""
    value = Closed.model_construct(**fields)
    strict = Codec(Closed, path='state', verify='always')
    quick = Codec(Closed, path='state')
    quick.encode(Closed())
    assert outcome(quick, value) == outcome(strict, value)


# --- plain ----------------------------------------------------------------------------------------


def _grams(value: Any) -> Any:
    return int(value.removesuffix(' g')) if isinstance(value, str) else value


class _Shout(str):
    __slots__ = ()


@dataclass
class Parcel:
    name: Annotated[str, AfterValidator(str.strip)]
    weight: Annotated[int, BeforeValidator(_grams), PlainSerializer(lambda n: f'{n} g')] = 0
    tags: list[Annotated[Any, WrapValidator(lambda v, inner: inner(v))]] = field(
        default_factory=list
    )
    type: str = 'parcel'


@dataclass
class Letter:
    name: Annotated[str, AfterValidator(str.strip)]
    note: Annotated[Any, BeforeValidator(lambda v: _Shout(v) if v == 'LOUD' else v)] = None
    more: Letter | None = None


def test_plain_is_without_functions_where_they_change_nothing() -> None:
    letters = Codec(Letter, path='letter')
    calm = Letter('a', 'quiet', Letter('b', {'x': [1, 2.5, None]}))
    text = letters.text(calm)
    assert letters.is_plain(calm, text)
    assert letters.decode_all([text], plain=True) == [calm]
    # Of each value it is tried: of this one the class of the note depends on them.
    loud = Letter('a', _Shout('LOUD'))
    text = letters.text(loud)
    assert not letters.is_plain(loud, text)
    assert type(letters.decode_all([text])[0].note) is _Shout
    assert letters.is_plain(Letter('a', 'LOUD'), text)


def test_what_cannot_be_loaded_plainly_is_loaded() -> None:
    parcels = Codec(Parcel, path='parcel')
    parcel = Parcel('a', 5, ['x'])
    text = parcels.text(parcel)
    assert b'"5 g"' in text
    assert not parcels.is_plain(parcel, text)
    assert parcels.decode_all([text, text], plain=True) == [parcel, parcel]


def test_who_is_given_nonsense_plainly_says_which() -> None:
    letters = Codec(Letter, path='letter')
    good = letters.text(Letter('a'))
    with pytest.raises(CodecError, match=r'letter\.name'):
        letters.decode_all([good, b'{"name":7}'], plain=True)
