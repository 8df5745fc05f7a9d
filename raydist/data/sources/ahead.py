"""Does several things at once and takes their results in order: what hides the latency of a store."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    do: Callable[[Item], Result], items: Sequence[Item], *, num_threads: int, name: str
) -> Iterator[Result]:
    """Yields what `do` returns for each item, or raises its error; without threads where one is enough.

    Once the iterator is closed no more items are begun. The threads are daemons, unlike those of a
    ThreadPoolExecutor: a process that has to end waits for no storage.
    """
    if min(num_threads, len(items)) <= 1:
        yield from map(do, items)
        return
    results = deque(Future[Result]() for _ in items)
    todo = deque(zip(results, items, strict=True))

    def work() -> None:
        while True:
            try:
                result, item = todo.popleft()
            except IndexError:
                return
            try:
                result.set_result(do(item))
            except BaseException as error:  # whoever takes the result raises it
                result.set_exception(error)

    for _ in range(min(num_threads, len(items))):
        threading.Thread(target=work, name=name, daemon=True).start()
    try:
        while results:
            yield results.popleft().result()
    finally:
        todo.clear()
