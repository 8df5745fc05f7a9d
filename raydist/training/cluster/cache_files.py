"""Files of `Dataset.cache(path)`: each process has its own, which no peer and no dead process locks.

TensorFlow writes a cache under a lock file. Workers of one host that cache the same path fail at once, and
the lock file of a process that was killed keeps all later ones from writing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from raydist import tf_private

_MARK = ".raydist-"


@contextlib.contextmanager
def own_files(process: Mapping[str, Any], is_alive: Callable[[Mapping[str, Any]], bool]) -> Iterator[None]:
    """Gives this process its own cache files inside the block, and deletes them at its end.

    Args:
      process: This one, as storage.claims describes it.
      is_alive: Whether another process of this host lives.
    """
    written = set[str]()
    # A pid means something on its own host only, or in its own container.
    place = hashlib.sha256(f"{process['host']} {process['pid_space']}".encode()).hexdigest()[:8]
    suffix = f"{_MARK}{place}-{process['pid']}-{process['start'] or 0}"
    original = tf.data.Dataset.cache

    @functools.wraps(original)
    def cache(self: tf.data.Dataset, filename: Any = "", name: str | None = None) -> tf.data.Dataset:
        filename = os.fspath(filename) if isinstance(filename, os.PathLike) else filename
        path = tf.get_static_value(tf.convert_to_tensor(filename))
        if path is None:  # in a function whose argument it is
            return original(self, tf.strings.join([filename, suffix]), name)
        path = path.decode()
        if not path or _is_file(f"{path}.index"):  # in memory, or a complete one, which all may read
            return original(self, path, name)
        if path not in written:
            tf_private.FreedIterators.wait_for_all()  # one holds its lock file until it is freed
            _delete_those_of_dead(path, place, is_alive)
            written.add(path)
        return original(self, path + suffix, name)

    try:
        with tf_private.changed(tf.data.Dataset, cache=cache):
            yield
    finally:
        for path in written:
            _delete(f"{path}{suffix}")


def _is_file(path: str) -> bool:
    with contextlib.suppress(tf.errors.OpError):
        return bool(tf.io.gfile.exists(path))
    return False


def _delete_those_of_dead(path: str, place: str, is_alive: Callable[[Mapping[str, Any]], bool]) -> None:
    """Deletes what processes of this host have left that were killed."""
    beginning = f"{path}{_MARK}{place}-"
    with contextlib.suppress(tf.errors.OpError):
        for file in tf.io.gfile.glob(f"{_literally(beginning)}*"):
            found = re.match(r"(\d+)-(\d+)", file.removeprefix(beginning))
            if found and not is_alive({"pid": int(found[1]), "start": int(found[2]) or None}):
                tf.io.gfile.remove(file)


def _delete(beginning: str) -> None:
    with contextlib.suppress(tf.errors.OpError):
        for file in tf.io.gfile.glob(f"{_literally(beginning)}*"):
            tf.io.gfile.remove(file)


def _literally(path: str) -> str:
    return re.sub(r"([*?\[\\])", r"\\\1", path)
