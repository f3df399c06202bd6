"""eosin doctor on the best-known families: it finds how each ends an answer, and faults only where there are some."""

from pathlib import Path

import pytest

pytest.importorskip("transformers")
from families import FAMILIES, save_family

from eosin.hub.doctor import CHECKS, examine, read_model_files
from eosin.hub.endings import find_turn_end, find_turn_text

STOPS = {"a template without an end": "\n\n### Response:"}


@pytest.fixture(params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_the_end_of_an_answer_is_found(name: str, tmp_path: Path):
    files = read_model_files(str(save_family(FAMILIES[name], tmp_path)))
    ends = files.tokenizer.convert_ids_to_tokens(list(find_turn_end(files.tokenizer)))
    assert ends == ([FAMILIES[name].turn_end] if FAMILIES[name].turn_end else [])
    assert set(find_turn_end(files.tokenizer)) <= set(files.endings)  # an audit stops there


def test_where_no_token_ends_an_answer_the_beginning_of_the_next_turn_is_a_stop_string(name: str, tmp_path: Path):
    files = read_model_files(str(save_family(FAMILIES[name], tmp_path)))
    text = find_turn_text(files.tokenizer)
    assert text == STOPS.get(name)
    assert any(f"stop_strings=[{text!r}]" in found.fix for found in examine(files)) == (text is not None)


def test_there_is_something_wrong_only_where_something_is(name: str, tmp_path: Path):
    files = read_model_files(str(save_family(FAMILIES[name], tmp_path)))
    wrong = [check.__name__ for check in CHECKS if any(found.wrong for found in check(files))]
    assert tuple(wrong) == FAMILIES[name].wrong
    assert not any("failed" in found.what for found in examine(files))
