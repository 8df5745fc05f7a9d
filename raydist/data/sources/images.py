"""from_images: image files in a folder for each class."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from raydist.data.examples import Field
from raydist.data.failures import asserted
from raydist.data.sources.ahead import in_order
from raydist.data.sources.files import DataFiles, Uri
from raydist.data.sources.source import Source
from raydist.errors import DataError
from raydist.storage.s3 import MAX_REQUESTS

_MAGIC = {b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM"}
_READ_THREADS = 8
# Of so many files, each within this time: they are in this host's memory.
_NUM_TRIED, _QUICK_S = 4, 200e-6
# From this host's disks: the first batch comes soon. From a store, as many requests as can be wait together.
_MOST_AT_ONCE = 128
_BMP_HEADER_BYTES = 32


class ImageSource(Source):
    """Images and their labels.

    Attributes:
      class_names: The folders, sorted; a label is a number in this list.
    """

    files: DataFiles
    decodes = True
    fields = (
        Field("image", (), np.dtype(object)),
        Field("path", (), np.dtype(object)),
        Field("label", (), np.dtype(np.int64)),
    )
    structure = (0, 1, 2)

    def __init__(
        self,
        uri: Uri,
        *,
        size: tuple[int, int] | None,
        channels: int,
        antialias: bool = True,
        has_classes: bool = True,
    ) -> None:
        """Looks for the files.

        Args:
          has_classes: Whether each file is in the folder of its class. Without classes all labels are 0.
        """
        if channels not in (1, 3, 4):
            raise DataError(f"from_images got channels={channels!r}; give 1, 3 or 4")
        if size is not None and not _is_size(size):
            raise DataError(f"from_images got size={size!r}; give size=(height, width), two ints above 0")
        self.files = DataFiles(uri, what="from_images", is_wanted=lambda key: not has_classes or "/" in key)
        if has_classes and not self.files.key(0):
            raise DataError(
                f"from_images got the file {self.files.uri(0)}; give a folder that holds one for each class"
            )
        self.most_at_once = None if self.files.are_remote else _MOST_AT_ONCE
        self._size = size
        self._channels = channels
        self._antialias = antialias
        folders = [key.partition("/")[0] if has_classes else "" for key in self.files.keys()]
        self.class_names = sorted(set(folders))
        self.options = repr(self.class_names)
        places = {name: label for label, name in enumerate(self.class_names)}
        self._labels = np.array([places[name] for name in folders], np.int64)
        self._shape: tuple[int, int, int] | None = None
        if size is not None:
            self._shape = (*size, channels)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def num_bytes(self) -> int:
        return max(1, self.files.num_bytes // len(self))

    def fingerprint(self) -> int:
        return self.files.fingerprint()

    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        found = self._contents(rows.tolist())
        contents, paths = np.empty(len(rows), object), np.empty(len(rows), object)
        contents[:] = found
        paths[:] = b""
        if self._size is None:  # they are named where an image has another shape than the first one
            paths[:] = [self.files.uri(row).encode() for row in rows.tolist()]
        return [contents, paths, self._labels[rows]]

    def _contents(self, rows: list[int]) -> list[bytes]:
        """Returns the files' contents. Where they come at once, threads would only wait for each other."""
        if self.files.are_remote:
            return list(in_order(self._content, rows, num_threads=MAX_REQUESTS, name="raydist-images"))
        began_at_s = time.perf_counter()
        found = [self._content(row) for row in rows[:_NUM_TRIED]]
        rest = rows[_NUM_TRIED:]
        if time.perf_counter() - began_at_s < _QUICK_S * len(found):
            return found + [self._content(row) for row in rest]
        with ThreadPoolExecutor(_READ_THREADS, "raydist-images") as pool:
            return found + list(pool.map(self._content, rest))

    def decode(self, values: Sequence[Any]) -> Any:
        import tensorflow as tf

        contents, paths, labels = values
        if self._shape is None:
            self._shape = self._shape_of_first()
        shape = self._shape

        def one(content_and_path: Any) -> Any:
            content, path = content_and_path
            image = tf.io.decode_image(content, channels=self._channels, expand_animations=False)
            if self._size is not None:
                image.set_shape([None, None, self._channels])
                has_size = tf.reduce_all(tf.equal(tf.shape(image)[:2], self._size))
                # Resizing to the size that it has would change nothing, and take longer than decoding.
                return tf.cond(has_size, lambda: tf.ensure_shape(image, shape), lambda: self._resized(image))
            is_alike = tf.reduce_all(tf.equal(tf.shape(image), shape))
            other = tf.strings.format("{}", tf.shape(image))
            first = f", and not {list(shape)} as the first one; give from_images(size=(height, width))"
            message = tf.strings.join([asserted("image "), path, " has the shape ", other, first])
            with tf.control_dependencies([tf.Assert(is_alike, [message])]):
                return tf.ensure_shape(image, shape)

        spec = tf.TensorSpec(shape, tf.uint8)
        return tf.map_fn(one, (contents, paths), fn_output_signature=spec), labels

    def _resized(self, image: Any) -> Any:
        import tensorflow as tf

        # Bilinear: weights are not negative and their sum is 1, so nothing is out of uint8's range.
        resized = tf.image.resize(image, self._size, antialias=self._antialias)
        return tf.cast(tf.round(resized), tf.uint8)

    def _shape_of_first(self) -> tuple[int, int, int]:
        import tensorflow as tf

        with tf.init_scope():  # where a graph is being made: the image itself is looked at
            image = tf.io.decode_image(self._content(0), channels=self._channels, expand_animations=False)
            height, width, channels = image.shape
        return int(height), int(width), int(channels)

    def _content(self, row: int) -> bytes:
        content = self.files.content(row)
        if not any(content.startswith(magic) for magic in _MAGIC):
            raise DataError(
                f"{self.files.uri(row)} is not a PNG, JPEG, GIF or BMP; move it out of the folder"
            )
        if not _is_whole(content):
            raise DataError(
                f"image {self.files.uri(row)} is cut off or damaged; write it again, or remove it"
            )
        return content


def _is_size(size: Any) -> bool:
    is_pair = isinstance(size, Sequence) and len(size) == 2
    return is_pair and all(isinstance(one, int | np.integer) and one > 0 for one in size)


def _is_whole(content: bytes) -> bool:
    """Whether a PNG's checksums are right, and others have their end; TensorFlow would not name the file."""
    if content.startswith(b"\x89PNG"):
        return _is_whole_png(content)
    if content.startswith(b"GIF8"):
        return _has_gif_end(content)
    if content.startswith(b"BM"):
        # The size that its header tells, and the smallest that TensorFlow takes.
        return len(content) >= max(_BMP_HEADER_BYTES, int.from_bytes(content[2:6], "little"))
    return _has_jpeg_end(content)


def _is_whole_png(content: bytes) -> bool:
    at, kind = 8, b""
    while kind != b"IEND":
        if len(content) < at + 12:
            return False
        length = int.from_bytes(content[at : at + 4], "big")
        kind, end = content[at + 4 : at + 8], at + 8 + length
        if zlib.crc32(memoryview(content)[at + 4 : end]) != int.from_bytes(content[end : end + 4], "big"):
            return False
        at = end + 4
    return True


def _has_jpeg_end(content: bytes) -> bool:
    at = 2
    # Segments, each with its length, up to the first scan; a thumbnail in one has an end of its own.
    while content[at : at + 1] == b"\xff" and content[at + 1 : at + 2] != b"\xda":
        is_fill = content[at + 1 : at + 2] == b"\xff"
        at += 1 if is_fill else 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    # Mostly at the very end: found at once.
    return content.endswith(b"\xff\xd9", at) or content.find(b"\xff\xd9", at) >= 0


def _has_gif_end(content: bytes) -> bool:
    """Walks block by block to the trailer, as its byte may stand anywhere within a block."""
    at = 13 + _color_bytes(content[10:11])
    while (kind := content[at : at + 1]) in (b"!", b","):
        # An extension has a label; an image its place, flags, maybe colors, and the size of its codes.
        at += 2 if kind == b"!" else 11 + _color_bytes(content[at + 9 : at + 10])
        while content[at : at + 1] > b"\0":
            at += 1 + content[at]
        at += 1
    return kind == b";"


def _color_bytes(flags: bytes) -> int:
    """Returns the length of the table of colors that the flags of a GIF or of an image in it tell of."""
    return 3 << ((flags[0] & 7) + 1) if flags and flags[0] & 0x80 else 0


def from_images(
    uri: Uri, *, size: tuple[int, int] | None = None, channels: int = 3, antialias: bool = True
) -> ImageSource:
    """Returns a source of `(image, label)`: uint8 `[height, width, channels]` and the class as int64.

    Example:
        source = raydist.data.from_images("flowers/", size=(224, 224))

    Args:
      uri: A folder, as text or `pathlib.Path`, that holds one folder for each class, with PNG, JPEG, GIF or
        BMP files; the labels number the folders by their sorted names.
      size: Height and width to which each image is resized, bilinearly; None where all have one size.
      antialias: False skips the filter before an image is made smaller, as Keras's
        `image_dataset_from_directory` does. That is faster, but patterns finer than a pixel of the result
        turn into false ones.

    Raises:
      DataError: There are no such files, or `size` is not a pair of ints.
    """
    return ImageSource(uri, size=size, channels=channels, antialias=antialias)
