"""The defects that tests.planted_defects plants fit the code as it is."""

from __future__ import annotations

from tests.planted_defects import DEFECTS, ROOT


def test_the_place_of_each_defect_stands_once_in_the_package() -> None:
    texts = [path.read_text() for path in (ROOT / "raydist").rglob("*.py")]
    assert [one.old for one in DEFECTS if sum(text.count(one.old) for text in texts) != 1] == []


def test_the_test_that_has_to_find_a_defect_is_there() -> None:
    names = {one.test for one in DEFECTS if one.test is not None}
    files = {name: ROOT / name.partition("::")[0] for name in names}
    gone = [
        name
        for name, path in files.items()
        if not path.exists()
        or name.partition("::")[2].partition("[")[0].split("::")[-1] not in path.read_text()
    ]
    assert gone == []
