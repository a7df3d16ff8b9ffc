"""What was measured: lines, the targets they are held to, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

__all__ = (
    'Line',
    'Target',
    'at_least',
    'at_most',
    'exactly',
    'markdown',
    'ms',
    'ratio',
    'show',
    'size',
    'us',
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a line's figure should be, as the project promises it."""

    sign: str
    limit: float
    unit: str = ''

    def met(self, figure: float) -> bool:
        """Whether a figure is as promised."""
        if self.sign == '≤':
            return figure <= self.limit
        if self.sign == '≥':
            return figure >= self.limit
        return figure == self.limit

    def __str__(self) -> str:
        return f'{self.sign} {self.limit:g} {self.unit}'.strip()


def at_most(limit: float, unit: str = '×') -> Target:
    """The figure is not above `limit`."""
    return Target(sign='≤', limit=limit, unit=unit)


def at_least(limit: float, unit: str = '×') -> Target:
    """The figure is not below `limit`."""
    return Target(sign='≥', limit=limit, unit=unit)


def exactly(limit: float, unit: str = '') -> Target:
    """The figure is `limit`: for counts."""
    return Target(sign='=', limit=limit, unit=unit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One figure: what was measured, against what."""

    what: str
    measured: str
    """As it is shown, with its unit."""
    baseline: str = ''
    """What it is compared with, as it is shown."""
    figure: float | None = None
    """The ratio, the difference or the count that the target speaks of."""
    unit: str = '×'
    """Of the figure."""
    target: Target | None = None
    raw: dict[str, float] = field(default_factory=dict[str, float])
    """What the figure was made from, in seconds, bytes or pieces."""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; `None` where there is none."""
        if self.target is None or self.figure is None:
            return None
        return self.target.met(self.figure)

    def as_json(self) -> dict[str, Any]:
        """For `build/bench.json`."""
        target = None if self.target is None else str(self.target)
        return {**asdict(self), 'target': target, 'met': self.met}


def us(seconds: float) -> str:
    """Seconds as microseconds."""
    return f'{seconds * 1e6:,.0f} µs'


def ms(seconds: float) -> str:
    """Seconds as milliseconds."""
    value = seconds * 1e3
    return f'{value:,.0f} ms' if value >= 100 else f'{value:,.2f} ms'


def size(count: float) -> str:
    """Bytes, in a unit that fits."""
    for unit in ('B', 'kB'):
        if abs(count) < 10_000:
            return f'{count:,.0f} {unit}'
        count /= 1_000
    return f'{count:,.1f} MB'


def ratio(
    what: str,
    measured: float,
    baseline: float,
    *,
    of: str,
    show: Callable[[float], str] = us,
    target: Target | None = None,
) -> Line:
    """A line whose figure is `measured / baseline`.

    Args:
        what: What was measured.
        measured: The measured value.
        baseline: What it is divided by.
        of: What the baseline is.
        show: How both are written.
        target: What the ratio should be.
    """
    return Line(
        what=what,
        measured=show(measured),
        baseline=f'{show(baseline)}  {of}',
        figure=measured / baseline,
        target=target,
        raw={'measured': measured, 'baseline': baseline},
    )


def show(console: Console, title: str, lines: Iterable[Line]) -> None:
    """Print the table of one topic."""
    table = Table(title=title, title_justify='left', title_style='bold', box=box.SIMPLE_HEAD)
    table.add_column('what')
    table.add_column('measured', justify='right')
    table.add_column('against')
    table.add_column('ratio', justify='right')
    table.add_column('target', justify='right')
    table.add_column('')
    for line in lines:
        table.add_row(
            line.what,
            line.measured,
            line.baseline,
            '' if line.figure is None else _figure(line.figure, line.unit),
            '' if line.target is None else str(line.target),
            {True: '[green]✓[/]', False: '[red]✗[/]', None: ''}[line.met],
        )
    console.print(table)


def markdown(title: str, lines: Iterable[Line]) -> str:
    """The table of one topic, for docs/benchmarks.md."""
    rows = [
        '| what | measured | against | ratio | target | |',
        '| --- | ---: | --- | ---: | ---: | --- |',
    ]
    for line in lines:
        figure = '' if line.figure is None else _figure(line.figure, line.unit)
        target = '' if line.target is None else str(line.target)
        met = {True: '✓', False: '✗', None: ''}[line.met]
        rows.append(
            f'| {line.what} | {line.measured} | {line.baseline} | {figure} | {target} | {met} |'
        )
    return '\n'.join((f'## {title}', '', *rows, ''))


def _figure(value: float, unit: str) -> str:
    text = f'{value:,.0f}' if value == int(value) or abs(value) >= 100 else f'{value:,.2f}'
    return f'{text} {unit}'.strip()
