"""eosin audit log:FILE: every form of log that people have, what it says of the ends, and what loops."""

import json
import random
import zipfile
from pathlib import Path

import pytest
from command_line import run
from test_audit import write_template

from eosin.auditing.logs import FORMS, audit_log, read_log
from eosin.causes import Cause

LOOP = "First the time of the season, and " + "the first time, and then the second, and " * 20
TEMPLATE = " ".join(f"{token:x}" for token in write_template(6, 4_000).tolist())
LONG = " ".join(random.Random(0).choices([f"{n:x}" for n in range(3_000)], k=1_500))
ENDED = "It ended, as it should."


def choice(text: str, reason: str | None, **more: object) -> dict[str, object]:
    return {"message": {"role": "assistant", "content": text}, "finish_reason": reason, **more}


def respond(*choices: dict[str, object]) -> dict[str, object]:
    return {"id": "1", "object": "chat.completion", "model": "mine", "choices": list(choices)}


def sample(text: str, reason: str) -> dict[str, object]:
    answer = {"message": {"content": [{"type": "reasoning", "reasoning": ""}, {"type": "text", "text": text}]}}
    return {"id": 1, "epoch": 1, "output": {"model": "mine", "choices": [{**answer, "stop_reason": reason}]}}


def complete(tokens: list[int], cause: str) -> dict[str, object]:
    table = {"decoder": "greedy", "context": 0, "cause": cause, "steps": 3, "log_prob": -1.0, "loop": None}
    return {**table, "cycle": None, "text": "a", "tokens": tokens}


LINES = {
    "a completion of Eosin": (complete([1, 2], "eos"), ["eos"]),
    "a completion that loops by its tokens": (complete([1, *[2, 3] * 20], "limit"), ["looping"]),
    "a completion that was proved": ({**complete([1, 2], "proved infinite"), "cycle": [2]}, ["proved infinite"]),
    "a response": (respond(choice(ENDED, "stop"), choice(LOOP, "length")), ["eos or stop string", "looping"]),
    "a text completion": (respond({"text": LONG, "finish_reason": "length"}), ["limit"]),
    "thoughts without an end": (
        respond({"message": {"content": None, "reasoning_content": TEMPLATE}, "finish_reason": "length"}),
        ["templated loop"],
    ),
    "vLLM, eos": (respond(choice(ENDED, "stop", stop_reason=None)), ["eos"]),
    "vLLM, another eos": (respond(choice(ENDED, "stop", stop_reason=128009)), ["eos"]),
    "vLLM, a stop string": (respond(choice(ENDED, "stop", stop_reason="\n\n")), ["stop string"]),
    "vLLM, the limit": (respond(choice(LONG, "length", stop_reason=None)), ["limit"]),
    "a filter": (respond(choice(ENDED, "content_filter")), ["filter"]),
    "a reason of tomorrow": (respond(choice(LOOP, "tired")), ["unknown, looping"]),
    "a call of a tool": (respond(choice("", "tool_calls")), ["eos or stop string"]),
    "a batch": ({"custom_id": "7", "response": {"body": respond(choice(LONG, "length"))}}, ["limit"]),
    "lm-evaluation-harness": (
        {"doc_id": 0, "resps": [[LOOP, ENDED]], "filtered_resps": ["a"]},
        ["unknown, looping", "unknown"],
    ),
    "Inspect, a sample": (sample(TEMPLATE, "max_tokens"), ["templated loop"]),
    "Inspect, a log": ({"version": 2, "samples": [sample(LONG, "model_length"), sample("a", "stop")]}, None),
    "a text": ({"prompt": "a", "completion": LOOP}, ["unknown, looping"]),
    "a text with a reason": ({"text": LONG, "finish_reason": "length"}, ["limit"]),
    "several on a line": ([{"text": LONG}, {"text": ENDED}], ["unknown", "unknown"]),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_a_line_says_as_much_as_it_can(name: str, tmp_path: Path):
    table, expected = LINES[name]
    path = tmp_path / "log.jsonl"
    path.write_text(f"{json.dumps(table)}\n\n{json.dumps({'text': ENDED, 'finish_reason': 'stop'})}\n")
    counted = sum(audit_log(path).causes.values(), start=type(audit_log(path).causes[""])())
    expected = ["limit", "eos or stop string"] if expected is None else expected
    assert sorted(counted.elements()) == sorted([*expected, "eos or stop string"])
    path.write_text(json.dumps(table, indent=2))  # one document over many lines
    assert len(list(read_log(path))) == len(expected)


def test_every_form_has_a_line():
    known = {form.split(".")[0] for form in FORMS}
    assert known <= {key for table, _ in LINES.values() if isinstance(table, dict) for key in table}


def test_an_archive_of_inspect_is_read(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "log.eval", "w") as archive:
        archive.writestr("header.json", "{}")
        for number, reason in enumerate(("stop", "max_tokens")):
            archive.writestr(f"samples/{number}_epoch_1.json", json.dumps(sample(LONG, reason)))
    assert audit_log(tmp_path / "log.eval").causes == {"mine": {"eos or stop string": 1, "limit": 1}}
    (tmp_path / "odd.eval").write_text("{}")
    assert run("audit", f"log:{tmp_path / 'odd.eval'}") == 2


@pytest.mark.parametrize(
    "text",
    ["hahaha" * 40, "abc" * 100, "\n" * 300, "谢谢你。" * 30, "No. " * 30, "x = 0\n    y = 1\n" * 12],
)
def test_a_loop_need_not_have_words(text: str, tmp_path: Path):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"text": f"It began. {text}"}))
    assert audit_log(path).causes[""] == {f"{Cause.UNKNOWN}, {Cause.LOOPING}": 1}


@pytest.mark.parametrize("text", ["-" * 100, "=" * 80 + "\n", " " * 100, "a, b, c", "Yes. Yes. Yes."])
def test_rules_and_short_repetitions_are_no_loops(text: str, tmp_path: Path):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"text": f"{ENDED} {text}"}))
    assert audit_log(path).causes[""] == {Cause.UNKNOWN: 1}


def write_log(path: Path, *tables: object) -> str:
    path.write_text("".join(f"{json.dumps(table)}\n" for table in tables))
    return f"log:{path}"


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    known = write_log(tmp_path / "a.jsonl", *[respond(choice(ENDED, "stop"))] * 3, respond(choice(LOOP, "length")))
    assert run("audit", known) == 0
    shown = capsys.readouterr().out
    assert "25.00 (4.56 to 69.94)" in shown
    assert "the second, and" in shown
    assert run("audit", known, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out).values()
    assert found["ratio"]["value"] == found["looping"]["value"] == 0.25
    assert found["causes"] == {"eos or stop string": 3, "looping": 1}
    assert run("audit", known, "--fail-above", "0.2") == 1
    assert run("audit", known, "--fail-above", "0.3") == 0
    unknown = write_log(tmp_path / "b.jsonl", {"mine": {"said": [ENDED]}}, {"mine": {"said": [LOOP]}})
    capsys.readouterr()
    assert run("audit", unknown, "--field", "mine.said.0") == 0
    shown = capsys.readouterr().out
    assert "does not say how each generation ended" in shown
    assert "50.00 (9.45 to 90.55)" in shown


def test_what_a_filter_cut_is_not_in_the_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    cut, ended = respond(choice(ENDED, "content_filter")), respond(choice(ENDED, "stop"))
    for lines, ratio in (([cut, ended, respond(choice(LOOP, "length"))], 0.5), ([cut], None)):
        assert run("audit", write_log(tmp_path / "log.jsonl", *lines), "--json") == 0
        (found,) = json.loads(capsys.readouterr().out).values()
        assert (found["ratio"] and found["ratio"]["value"]) == ratio


def test_nonsense_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    good = {"text": ENDED}
    (tmp_path / "broken.jsonl").write_text(f'{json.dumps(good)}\n\n{{"text": "a\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    for log, more, said in (
        (f"log:{tmp_path / 'broken.jsonl'}", [], "line 3 of"),
        (f"log:{tmp_path / 'empty.jsonl'}", [], "has no texts"),
        (f"log:{tmp_path / 'nothing.jsonl'}", [], "No such file"),
        (write_log(tmp_path / "a.jsonl", good, 3), [], "line 2 of"),
        (write_log(tmp_path / "b.jsonl", good, {"said": "a"}), [], "--field names the field"),
        (write_log(tmp_path / "c.jsonl", good), ["--field", "said"], "no text is under said"),
        (write_log(tmp_path / "d.jsonl", {"resps": [[["-1.5", "True"]]]}), [], "a log of likelihoods"),
        (write_log(tmp_path / "e.jsonl", respond({"finish_reason": "stop"})), [], "it has no 'text'"),
        (write_log(tmp_path / "f.jsonl", good), ["--decoders", "greedy"], "--decoders decides a decoding"),
        (write_log(tmp_path / "g.jsonl", good), ["--fail-above", "0.1"], "does not say"),
        ("demo", ["--field", "text"], "--field is for logs"),
    ):
        assert run("audit", log, *more) == 2, said
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_completions_of_an_audit_are_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The log has the causes of the records."""
    how = ("--decoders", "greedy,nucleus:0.2", "--count", "40", "--max-steps", "300", "--no-proofs", "--json")
    files = ("--out", str(tmp_path / "records.jsonl"), "--completions", str(tmp_path / "completions.jsonl"))
    assert run("audit", "demo-st", *how, *files) == 0
    records = json.loads(capsys.readouterr().out)
    assert run("audit", f"log:{tmp_path / 'completions.jsonl'}", "--json") == 0
    log = json.loads(capsys.readouterr().out)
    for decoder, record in records.items():
        assert log[decoder]["causes"] == {cause: count for cause, count in record["causes"].items() if count}
