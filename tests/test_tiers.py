"""What `make test` leaves to `make test-all` exists, and every file of tests keeps its main part or says why not."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tiers import AMX, CLIENTS, EXTENDED, FIRST_FILES, TPU, Extended, is_extended, place_in_order

TESTS = Path(__file__).parent


@pytest.mark.parametrize("row", EXTENDED, ids=lambda row: row.test)
def test_every_row_names_tests_that_exist(row: Extended) -> None:
    """A test that was renamed would silently come back into `make test`, or a new one never run there."""
    file, _, name = row.test.partition("::")
    assert (TESTS / file).exists()
    if name:
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert name in {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }


def test_no_two_rows_name_the_same_tests() -> None:
    """Each would leave out the cases that the other keeps."""
    counts = Counter(row.test for row in EXTENDED)
    assert [test for test, count in counts.items() if count > 1] == []


def test_only_what_needs_another_environment_is_left_out_as_a_whole_file() -> None:
    whole = {row.test for row in EXTENDED if "::" not in row.test and row.why not in (AMX, CLIENTS, TPU)}
    assert whole == {"server/end_to_end/test_any_traffic.py"}, "the engine's keeps a shorter one"


def test_a_row_leaves_out_its_test_but_not_the_cases_it_keeps() -> None:
    row = Extended("a/test_b.py::test_c", "repeats", keep=("[0]-packed",))
    assert row.matches("a/test_b.py::test_c[[1]-packed]")
    assert row.matches("a/test_b.py::test_c")
    assert not row.matches("a/test_b.py::test_c[[0]-packed]")
    assert not row.matches("a/test_b.py::test_cd")
    assert Extended("a", "folder").matches("a/test_b.py::test_c")
    assert not Extended("a", "folder").matches("ab/test_b.py::test_c")


def test_fixtures_and_repeated_parameters_decide_too() -> None:
    assert is_extended("loading/test_x.py::test_y", ("tmp_path", "reference_python"), {})
    assert is_extended("kernels/cpu/test_x.py::test_y[1]", (), {"dtype": 1})
    assert not is_extended("kernels/cpu/test_x.py::test_y[0]", (), {"dtype": 0})
    assert not is_extended("cli/test_x.py::test_y[1]", (), {"dtype": 1})


def test_files_that_begin_first_exist() -> None:
    assert all((TESTS / file).exists() for file in FIRST_FILES)
    assert place_in_order(f"{FIRST_FILES[1]}::test") == 1
    assert place_in_order("test_tiers.py::test") == len(FIRST_FILES)
