"""from_images: files, classes, and what is told of files that are not images."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from raydist import data
from raydist.errors import DataError
from tests.support.image_files import png


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(["dog/2.png", "cat/1.png", "cat/deeper/0.png", "ant/x.PNG"]):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(np.full((3, 4, 3), number, np.uint8)))
    (tmp_path / "labels.txt").write_text("beside the classes' folders")
    return tmp_path


def test_folders_are_classes(folder: Path) -> None:
    source = data.from_images(str(folder))
    assert len(source) == 4
    assert source.class_names == ["ant", "cat", "dog"]
    contents, paths, labels = pickle.loads(pickle.dumps(source)).take(np.array([3, 0, 1]))
    assert labels.tolist() == [2, 0, 1]
    assert paths.tolist() == [f"{folder}/{name}".encode() for name in ("dog/2.png", "ant/x.PNG", "cat/1.png")]
    assert contents[0] == (folder / "dog/2.png").read_bytes()


def test_order_of_a_mixture_depends_on_no_size_that_images_get(folder: Path) -> None:
    whole, small = data.from_images(folder), data.from_images(folder, size=(2, 2))
    assert whole.num_bytes == small.num_bytes  # decides the windows of other sources in a mixture


def test_s3(s3_uri: str) -> None:
    from raydist.storage.filesystem import Storage

    Storage.open(s3_uri).write_bytes("b/0.png", png(np.zeros((2, 2, 3), np.uint8)))
    Storage.open(s3_uri).write_bytes("a/0.png", png(np.zeros((2, 2, 3), np.uint8)))
    source = data.from_images(s3_uri)
    assert (source.class_names, source.take(np.arange(2))[2].tolist()) == (["a", "b"], [0, 1])


def test_bad_files_are_named(folder: Path) -> None:
    whole = (folder / "dog/2.png").read_bytes()
    source = data.from_images(str(folder))
    (folder / "dog/2.png").unlink()
    with pytest.raises(DataError, match=r"dog/2\.png is gone since the run began"):
        source.take(np.array([3]))
    (folder / "dog/2.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"dog/2\.png is not a PNG, JPEG, GIF or BMP; move it out"):
        data.from_images(str(folder)).take(np.array([3]))
    for bad in (whole[:-9], whole[:-1], whole[:8], whole[:50] + b"?" + whole[51:]):
        (folder / "dog/2.png").write_bytes(bad)
        with pytest.raises(DataError, match=r"image .*dog/2\.png is cut off or damaged; write it again"):
            data.from_images(str(folder)).take(np.array([3]))


# A JPEG's segments with a thumbnail, which has an end of its own, a scan, and its end.
THUMBNAIL = b"\xff\xe1" + struct.pack(">H", 2 + 6) + b"ab\xff\xd9cd"
SCAN = b"\xff\xda" + struct.pack(">H", 2 + 2) + b"\x01\x02" + b"scan\xff\x00data"


@pytest.mark.parametrize(
    ("content", "is_whole"),
    [
        (b"\xff\xd8" + THUMBNAIL + SCAN + b"\xff\xd9", True),
        (b"\xff\xd8" + THUMBNAIL + b"\xff" + SCAN + b"\xff\xd9 and a film \xff\xda", True),
        (b"\xff\xd8" + THUMBNAIL + SCAN, False),
        (b"\xff\xd8" + THUMBNAIL[:7], False),
        (b"\xff\xd8\xff", False),
    ],
)
def test_cut_off_jpeg_is_named(tmp_path: Path, content: bytes, is_whole: bool) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.jpg").write_bytes(content)
    source = data.from_images(str(tmp_path))
    if is_whole:
        assert source.take(np.array([0]))[0][0] == content
    else:
        with pytest.raises(DataError, match=r"image .*1\.jpg is cut off"):
            source.take(np.array([0]))


# 2 x 1 pixels: a table of two colors, an extension that holds a trailer's byte, and an image.
GIF_START = b"GIF89a" + struct.pack("<HHBBB", 2, 1, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
GIF_IMAGE = b"," + struct.pack("<HHHHB", 0, 0, 2, 1, 0) + b"\x02\x02\x44\x0a\0"
GIF = GIF_START + b"!\xfe\x03a;b\0" + GIF_IMAGE + b";"
BMP_PIXELS = bytes(range(1, 7)) + b"\0\0"
BMP = b"BM" + struct.pack("<IIIIiiHHIIiiII", 62, 0, 54, 40, 2, 1, 1, 24, 0, 8, 0, 0, 0, 0) + BMP_PIXELS


@pytest.mark.parametrize("whole", [GIF, GIF + b"\0\0", BMP, BMP + b"\0"])
def test_whole_gif_and_bmp_are_taken(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1").write_bytes(whole)
    assert data.from_images(tmp_path).take(np.array([0]))[0][0] == whole


@pytest.mark.parametrize("whole", [GIF, BMP])
def test_cut_off_gif_and_bmp_are_named(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "cat").mkdir()
    path = tmp_path / "cat" / "1"
    for length in range(4, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"image .*cat/1 is cut off or damaged; write it again"):
            data.from_images(tmp_path).take(np.array([0]))


def test_what_is_no_folder_of_classes_is_a_data_error(folder: Path) -> None:
    with pytest.raises(DataError, match=r"from_images found no files at .*cat/deeper"):
        data.from_images(str(folder / "cat/deeper"))
    with pytest.raises(DataError, match=r"from_images got the file .*1\.png; give a folder"):
        data.from_images(str(folder / "cat/1.png"))
    with pytest.raises(DataError, match="from_images got channels=2; give 1, 3 or 4"):
        data.from_images(str(folder), channels=2)


@pytest.mark.parametrize("size", [32, (32,), (32, 32, 3), (32.0, 32), (0, 32), "ab"])
def test_size_that_is_no_pair_is_a_data_error(folder: Path, size: object) -> None:
    with pytest.raises(DataError, match=r"from_images got size=.*; give size=\(height, width\), two ints"):
        data.from_images(str(folder), size=size)  # type: ignore[arg-type]
