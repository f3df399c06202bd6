"""Prompts and training sets as people have them: lines of text, and JSON lines of several forms."""

import json
from pathlib import Path

import pytest

from eosin.data.prompts import read_prompts
from eosin.errors import BadInput

USER, ANSWER = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "a"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}
FORMS = {
    "a text": ({"prompt": "hello"}, "hello"),
    "messages": ({"messages": [USER]}, [USER]),
    "messages as the prompt": ({"prompt": [USER]}, [USER]),
    "an answer at the end is left out": ({"messages": [USER, ANSWER]}, [USER]),
    "an answer in between stays": ({"messages": [USER, ANSWER, USER, ANSWER, ANSWER]}, [USER, ANSWER, USER]),
    "content in parts": ({"messages": [PARTS]}, [USER]),
    "more fields": ({"id": 7, "prompt": "hello", "answer": "4"}, "hello"),
}


@pytest.mark.parametrize("suffix", ["jsonl", "json", "txt"])
@pytest.mark.parametrize("form", FORMS)
def test_a_line_of_json_is_a_prompt(form: str, suffix: str, tmp_path: Path):
    """Also in a file whose name does not say so."""
    table, expected = FORMS[form]
    path = tmp_path / f"prompts.{suffix}"
    path.write_text(f"{json.dumps(table)}\n\n{json.dumps({'prompt': 'b'})}\n")
    assert read_prompts(path) == [expected, "b"]
    assert read_prompts(path, 1) == [expected]


def test_lines_of_text_are_unchanged(tmp_path: Path):
    path = tmp_path / "prompts.txt"
    path.write_text('  two  words \n\n{"prompt": 1}\r\n{\n[1]\n')
    assert read_prompts(path) == ["  two  words ", '{"prompt": 1}', "{", "[1]"]
    path.write_text("{ an open brace\n")
    assert read_prompts(path) == ["{ an open brace"]


BROKEN = {
    '{"prompt": "b"': "Expecting",
    '"b"': "line 3",
    "[]": "line 3",
    '{"text": "b"}': "it has no 'prompt'",
    '{"prompt": ""}': "it is empty",
    '{"prompt": 3}': "line 3",
    '{"messages": []}': "it is empty",
    '{"messages": "b"}': "line 3",
    '{"messages": [{"role": "user"}]}': "it has no 'content'",
    '{"messages": [{"role": "assistant", "content": "b"}]}': "it is empty",
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_is_named_by_its_number(line: str, tmp_path: Path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n\n{line}\n')
    with pytest.raises(BadInput, match=f"line 3 of {path} is no prompt") as error:
        read_prompts(path)
    assert BROKEN[line] in str(error.value)
