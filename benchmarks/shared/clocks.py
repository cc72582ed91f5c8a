"""Clocks around the parts of one thread's calls: a part's own time, without the parts inside it."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clocks:
    """``seconds`` of each part by name. Parts nest, and their own times add up to the whole.

    Functions that ``around`` replaced are put back at the end of a ``with`` block.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._parts: list[str] = []
        self._since = 0.0
        self._replaced: list[tuple[object, str, object]] = []

    def __enter__(self) -> "Clocks":
        return self

    def __exit__(self, *_: object) -> None:
        while self._replaced:
            setattr(*self._replaced.pop())

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Inside it the time is ``name``'s."""
        self._turn()
        self._parts.append(name)
        try:
            yield
        finally:
            self._turn()
            self._parts.pop()

    def around(self, owner: object, function: str, name: str) -> None:
        """Each call of ``owner``'s ``function`` is a part from now on."""
        inner: Callable[..., object] = getattr(owner, function)
        self._replaced.append((owner, function, inner))

        def clocked(*arguments: object, **options: object) -> object:
            with self.part(name):
                return inner(*arguments, **options)

        setattr(owner, function, clocked)

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._parts:
            self.seconds[self._parts[-1]] += now - self._since
        self._since = now
