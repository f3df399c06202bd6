"""The page: it says what the records say, shows model text as text, and works in a real browser."""

import base64
import itertools
import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from records_made_up import L, record

from eosin.causes import Cause
from eosin.cli.main import main
from eosin.records.record import StepSummary
from eosin.report import charts
from eosin.report.audit_page import build_audit_page, show_loops
from eosin.report.audits import to_percent
from eosin.report.charts import (
    DATA,
    MOST_CURVES,
    NARROW,
    HeadPoint,
    bin_lengths,
    chart_heads,
    chart_lengths,
    chart_ratios,
    chart_survival,
    draw_curves,
    draw_sweep,
    pair_decoders,
    trace_survival,
)
from eosin.report.completions import (
    HERO_CHARACTERS,
    LEAST_CHARACTERS,
    MOST_CARDS,
    MOST_CHARACTERS,
    Card,
    Sample,
    choose_pairs,
    sample_completions,
    share_room,
)
from eosin.report.drawing import GAP, SIZE, Dot, Drawing, Label, Line, Scale, estimate_width, render_svg, spread
from eosin.report.folding import FOR_EVER, LONGEST_WORD, TO_THE_LIMIT, fold, fold_completion, shorten_parts
from eosin.report.origin import Origin, index_origins
from eosin.report.page import PHONE, WIDE, Page, spell_text
from eosin.report.tables import Column, Table
from eosin.report.traces import Example, ExampleLoop, ExampleStep, draw_trace
from eosin.report.verdict import Fix, Sentence

NASTY = [
    '<script>document.title="taken"</script>',
    "</script><img src=x onerror=alert(1)>",
    "&amp; <b>bold</b> \u2028 ]]>",
]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


def example(decoder: str, text: str, loop: ExampleLoop | None = None) -> Example:
    steps = [ExampleStep(f" {text} {n}", 0.5, 10.0**-n, n + 1, 3, None if n % 2 else "nucleus:0.2") for n in range(30)]
    return Example("lstm", decoder, 4, f"a prefix {text}", Cause.LIMIT, steps, loop)


def card(text: str, context: int = 0, decoder: str = "greedy", cause: str = "looping", model: str = "m") -> Card:
    return Card(model, decoder, context, cause, 30, text, [(text, ""), (text, "x 12")])


def page(completions: int = 3) -> Page:
    records = [
        record([(3, Cause.EOS), (30, Cause.PROVED), (5, Cause.EOS)], decoder="greedy", run=NASTY[0]),
        record([(3, Cause.EOS), (7, Cause.EOS), (5, Cause.EOS)], decoder="consistent-nucleus:0.2", run=NASTY[0]),
    ]
    made = build_audit_page(records)
    words = Table(
        (Column("name", left=True), Column("number"), Column("pair", str, ("a", "b"))),
        ((NASTY[1], 10, (2.5, 1)), ("b", 9, (10.5, 1)), ("c", -1, (None, 1)), ("d", None, None)),
        f"a table {NASTY[2]}",
        NASTY[0],
    )
    return replace(
        made,
        title=f"title {NASTY[0]}",
        verdict=[Sentence(f"It does not {NASTY[1]}", "bad"), *made.verdict],
        fix=Fix(NASTY[0], NASTY[1]),
        pairs=[(card(NASTY[0]), card(NASTY[1], cause="eos")), (card(NASTY[2]), None)],
        tables=[*made.tables, words],
        examples=[
            (f"one {NASTY[0]}", [example("greedy", NASTY[0], ExampleLoop(5, 2))]),
            ("two", [example("greedy", "second"), example("nucleus:0.2", "third")]),
        ],
        completions=[card(NASTY[n % 3], n, NASTY[0] if n else "greedy") for n in range(completions)],
        total=100_000,
        facts=[("command", NASTY[0])],
    )


def test_the_page_asks_nothing_of_anyone():
    html = page().render()
    assert not re.search(r"""src\s*=\s*["']""", re.sub(r"<[^>]*&lt;[^>]*>", "", html).replace("src=x", ""))
    assert set(re.findall(r"""href\s*=\s*["']([^#"'][^"']*)""", html)) == {
        "https://aclanthology.org/2020.emnlp-main.448/"
    }
    assert "default-src 'none'" in html
    assert "a sample: 3 of 100,000 completions." in html.lower()


@given(st.text())
def test_no_text_gets_out_of_its_place(text: str):
    table = Table((Column("c", left=True),), ((text,),), text, text)
    steps = [ExampleStep(text, 0.5, 0.5, 1, 1, text)]
    traced = Example(text, text, 0, text, Cause.LIMIT, steps)
    shown = card(text, decoder=text, model=text)
    made = Page(
        text,
        [Sentence(text)],
        fix=Fix(text, text),
        tables=[table],
        pairs=[(shown, shown)],
        completions=[shown],
        examples=[(text, [traced])],
        facts=[(text, text)],
    ).render()
    assert made.count("</script>") == 2
    assert made.count("<script") == 2
    held = re.search(r'id="data">(.*?)</script>', made, re.DOTALL)
    assert held
    assert json.loads(held[1]) == [[[text, 0.5, 0.5, 1, 1, text]]]
    assert (copied := re.search(r'<pre id="fix">(.*?)</pre>', made, re.DOTALL))
    assert unescape(copied[1]) == text
    assert "<" not in copied[1]


# folding


@given(st.text("ab ", max_size=60), st.integers(1, 40))
def test_folded_text_unfolds_to_itself(text: str, times: int):
    """Words repeat whatever the space before the first of them; letters are compared where words are long."""
    whole = text * times
    folded = fold(whole)
    if max(map(len, whole.split()), default=0) > LONGEST_WORD:
        assert "".join(part * count for part, count in folded) == whole
    else:
        assert [word for part, count in folded for word in part.split() * count] == whole.split()


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("", []),
        ("one two three", [("one two three", 1)]),
        ("on and on and on and", [("on and", 3)]),
        ("so it goes" + " on and" * 120, [("so it goes", 1), (" on and", 120)]),
        ("so" + " a b c" * 5 + " end" * 6 + " .", [("so", 1), (" a b c", 5), (" end", 6), (" .", 1)]),
        ("x" * 1_000_000, [("x", 1_000_000)]),
        ("xyz" * 300_000 + "!", [("xyz", 300_000), ("!", 1)]),
        ("very very good", [("very very good", 1)]),
    ],
)
def test_what_repeats_is_shown_once_with_how_often(text: str, folded: list[tuple[str, int]]):
    assert fold(text) == folded


@pytest.mark.parametrize(
    ("is_proved", "is_whole", "times"), [(True, True, FOR_EVER), (False, True, "x 9"), (False, False, TO_THE_LIMIT)]
)
def test_a_loop_is_told_with_what_is_known_of_it(is_proved: bool, is_whole: bool, times: str):
    text, before = "so it goes" + " on and" * 9 + " on", "so it goes"
    assert fold_completion(text, before, is_proved, is_whole) == [("so it goes", ""), (" on and", times)]


def test_a_loop_that_begins_within_a_word_is_folded():
    text, before = "so. I'm not sure." + " I'm not sure." * 9, "so. I"
    assert fold_completion(text, before, is_proved=False) == [
        ("so. I", ""),
        ("'m", ""),
        (" not sure. I'm", "x 9"),
    ]


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=30), st.sampled_from(["", "x 3"])), max_size=6), st.integers(4, 60)
)
def test_what_is_left_out_is_counted(parts: list[tuple[str, str]], most: int):
    shown = shorten_parts(parts, most)
    assert len(shown) <= len(parts)
    assert not parts or shown[-1][1] == parts[-1][1]
    if sum(len(text) for text, _ in parts) <= most:
        assert shown == parts
    for text, _ in shown:
        assert len(text) <= most or "more characters)" in text


@given(st.lists(st.integers(0, 3 * MOST_CHARACTERS), max_size=400))
def test_what_short_completions_leave_long_ones_get(lengths: list[int]):
    room = share_room(lengths)
    shown = [min(length, room) for length in lengths]
    assert sum(shown) <= max(MOST_CHARACTERS, len(lengths) * LEAST_CHARACTERS)
    assert shown == lengths or sum(shown) > MOST_CHARACTERS - len(lengths)


@given(st.integers(0, 3000), st.integers(1, 50))
def test_a_sample_is_spread_over_all_that_came_by(count: int, most: int):
    sample = Sample(most)
    for item in range(count):
        sample.add(item)
    assert sample.seen == count
    assert len(sample.kept) <= most
    assert sample.kept == list(range(0, count, sample.stride))[: len(sample.kept)]
    assert count - (sample.kept[-1] if sample.kept else 0) <= sample.stride or not count
    assert len(sample.kept) >= min(count, most // 2)


def completion_file(path: Path, count: int) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for n in range(count):
            loop = {"onset": 3, "period": 2, "before": "so it"} if n % 10 == 0 else None
            line = {
                "decoder": ["greedy", "nucleus:0.2"][n % 2],
                "context": n,
                "cause": "looping" if loop else "eos",
                "steps": 40,
                "loop": loop,
                "text": "so it goes on and on and on",
                "tokens": [1, 2, 3],
            }
            file.write(json.dumps(line) + "\n")
    return path


def test_breaks_are_signs_and_other_controls_are_spelt():
    assert spell_text("one\n\ntwo \x1b[31m \u202e <b>") == "one ↵  ↵ two \\x1b[31m \\u202e <b>"


def test_completions_of_the_first_screen_are_short():
    long = Card("m", "greedy", 1, "limit", 30, "so", [("word " * 400, ""), ("again", "x 9")])
    ((shown, _),) = choose_pairs([long], ("m", "greedy"), [])
    assert sum(len(text) for text, _ in shown.parts) < 2 * HERO_CHARACTERS
    assert shown.parts[-1] == ("again", "x 9")


def test_a_report_of_a_hundred_thousand_completions_is_small(tmp_path: Path):
    path = completion_file(tmp_path / "completions.jsonl", 100_000)
    started = time.monotonic()
    chosen, there = sample_completions([path])
    assert time.monotonic() - started < 10
    assert there == 100_000
    assert len(chosen) <= MOST_CARDS
    looping = [each for each in chosen if each.cause == "looping"]
    assert {tuple(each.parts) for each in looping} == {(("so it", ""), (" goes on and on and on", TO_THE_LIMIT))}


def test_a_loop_at_the_limit_is_a_loop_on_its_card_too(tmp_path: Path):
    line = {"decoder": "beam:2", "context": 0, "steps": 30, "text": "so it goes on and on", "cause": "limit"}
    lines = [{**line, "loop": {"before": "so it"}}, {**line, "context": 1}]
    (tmp_path / "completions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    cards, _ = sample_completions([tmp_path / "completions.jsonl"])
    assert [each.cause for each in cards] == ["looping", "limit"]


def test_a_completion_that_was_written_twice_is_shown_once(tmp_path: Path):
    path = completion_file(tmp_path / "completions.jsonl", 20)
    path.write_text(path.read_text() * 2)
    assert sample_completions([path])[1] == 20


def test_pairs_are_of_one_context_and_their_loops_differ():
    failed = [card("same", 1), card("same", 2), card("other", 3), card("alone", 4), card("ended", 5, cause="eos")]
    helped = [card("good", n, "keeping", "eos", "n") for n in (1, 2, 3, 5)]
    pairs = choose_pairs([*failed, *helped], ("m", "greedy"), [("n", "none"), ("n", "keeping")])
    assert [(before.context, after and after.context) for before, after in pairs] == [(1, 1), (3, 3), (4, None)]
    assert choose_pairs(helped, ("m", "greedy"), [("n", "keeping")]) == []


# drawings


@given(st.lists(st.integers(1, L), max_size=30))
def test_a_curve_of_what_was_counted_goes_down_in_steps(ends: list[int]):
    """Between two points of it nothing ended; where all ended it is zero."""
    counted = record([*((end, Cause.EOS) for end in ends), *[(L, Cause.LIMIT)] * (not ends)])
    drawn = trace_survival(counted)
    assert drawn.falls_in_steps
    held, last = dict(drawn.points), None
    for step in range(1, L + 1):
        last = held.get(step, last)
        assert last == pytest.approx(to_percent(counted.counts.ratio(step)))


@pytest.mark.parametrize("most", [2, L, 2 * L])
def test_a_curve_with_too_many_steps_is_drawn_through_some_of_them(most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(charts, "MOST_STEPS", most)
    counted = record([(end, Cause.EOS) for end in range(1, L + 1)])
    drawn = trace_survival(counted)
    assert drawn.falls_in_steps == (most >= L)
    assert len(drawn.points) <= most + 2
    assert all(share == to_percent(counted.counts.ratio(step)) for step, share in drawn.points)


def test_a_model_of_which_all_ended_does_not_look_like_one_that_loops():
    ended, stuck = record([(3, Cause.EOS)] * 8), record([(3, Cause.EOS)] * 7 + [(L, Cause.LOOPING)], decoder="beam:2")
    drawing = draw_curves([trace_survival(ended), trace_survival(stuck)], WIDE)
    lines = [mark for mark in drawing.marks if isinstance(mark, Line) and mark.width == 1.75]
    bottom = max(y for mark in drawing.marks if isinstance(mark, Line) for _, y in mark.points)
    assert [line.points[-1][1] == bottom for line in lines] == [True, False]
    assert sum(isinstance(mark, Dot) for mark in drawing.marks) == 1
    labels = [mark.text for mark in drawing.marks if isinstance(mark, Label)]
    assert {"greedy 0.00%", "beam:2 12.50%"} <= set(labels)


def test_no_axis_goes_below_what_the_contexts_can_resolve():
    drawing = draw_curves([trace_survival(record([(3, Cause.EOS)] * 99 + [(L, Cause.LIMIT)]))], WIDE)
    ticks = [mark.text for mark in drawing.marks if isinstance(mark, Label) and mark.anchor == "end"]
    assert ticks == ["1%", "10%", "100%", "0"]


def test_at_most_six_curves_are_shown_at_a_time_and_pairs_stay_together():
    names = [f"top-k:{k}" for k in range(1, 8)]
    both = [
        record([(3, Cause.EOS), (30, Cause.LIMIT)], decoder=f"{how}{name}")
        for name in names
        for how in ("", "consistent-")
    ]
    shown = chart_survival(both)
    assert [chart.more for chart in shown] == [False, True, True]
    drawings = [chart.draw(WIDE) for chart in shown]
    dashed = [
        [mark.dashed for mark in each.marks if isinstance(mark, Line) and mark.width == 1.75] for each in drawings
    ]
    assert dashed == [[False, True] * 3, [False, True] * 3, [False, True]]
    assert max(map(len, dashed)) == MOST_CURVES


def test_the_two_forms_of_a_rule_share_a_chart_and_a_rule_has_one_colour_in_all():
    stuck, ended = [(30, Cause.LIMIT)] * 2, [(3, Cause.EOS)] * 2
    first = [record(stuck, run="a", decoder=name) for name in ("greedy", "beam:2", "beam:4", "top-k:2", "min-p:0.1")]
    pair = [record(ended, run="a", decoder=f"{how}nucleus:0.2") for how in ("", "consistent-")]
    other = [record(outcomes, run="b", decoder=name) for outcomes, name in ((ended, "greedy"), (stuck, "beam:4"))]
    shown = chart_survival([*first, *pair, *other])
    assert [chart.title.rpartition(": ")[2] for chart in shown if chart.more] == ["nucleus:0.2"]
    colours = [
        {mark.text.split()[0]: mark.colour for mark in chart.draw(WIDE).marks if isinstance(mark, Label)}
        for chart in shown
    ]
    assert {"nucleus:0.2", "consistent-nucleus:0.2"} <= set(colours[1])
    assert all(colours[0][name] == colours[2][name] for name in ("greedy", "beam:4"))
    assert colours[0]["greedy"] != colours[0]["beam:4"]


def test_bars_of_lengths_have_their_numbers_and_their_bins():
    drawing = chart_lengths([(DATA, 0.0, {3: 1}), ("ours", 25.0, {1: 1, 4: 1, 20: 1})]).draw(WIDE)
    said = [mark.text for mark in drawing.marks if isinstance(mark, Label)]
    assert said.count("25%") == 3
    assert {"1", "2", "3-4", "5-7", "8-11", "12-17", "18-20", "no end", "25.00%"} <= set(said)


def test_decoders_are_paired_in_the_order_of_the_paper():
    names = [
        "consistent-nucleus:0.2",
        "min-p:0.1",
        "nucleus:0.2",
        "beam:4",
        "greedy",
        "ancestral",
        "consistent-top-k:2",
    ]
    rows = pair_decoders([record([(3, Cause.EOS)], decoder=name) for name in names])
    assert [row.decoder for row in rows] == ["ancestral", "greedy", "beam:4", "top-k:2", "nucleus:0.2", "min-p:0.1"]
    assert [tuple(map(bool, row.records)) for row in rows][3:] == [(False, True), (True, True), (True, False)]


def drawings(width: float) -> dict[str, Drawing]:
    outcomes = [(3, Cause.EOS), (7, Cause.EOS), (30, Cause.LIMIT)]
    records = [record(outcomes, decoder=name) for name in ("greedy", "nucleus:0.2", "consistent-nucleus:0.2")]
    lengths = chart_lengths([(DATA, 0.0, {3: 4, 9: 2}), ("ours", 25.0, {3: 1, 7: 2})])
    heads = [HeadPoint("LSTM", "softmax", 60.0, 2.5), HeadPoint("LSTM", "self-terminating 1e-3", 64.0, 0.0)]
    return {
        "ratios": chart_ratios(records, {("lstm", "greedy"): 12.0}).draw(width),
        "survival": chart_survival(records)[0].draw(width),
        "lengths": lengths.draw(width),
        "heads": chart_heads("Table 3", "greedy", heads).draw(width),
        "sweep": draw_sweep("dropout", [("a", [(0.1, [1.0, 2.0]), (0.5, [3.0])]), ("b", [(0.1, [1.0])])], width),
        "trace": draw_trace(example("greedy", "a", ExampleLoop(5, 2)), 30, width),
    }


@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("name", list(drawings(WIDE)))
def test_nothing_is_drawn_beside_the_sheet_and_labels_do_not_overlap(name: str, width: float):
    drawing = drawings(width)[name]
    boxes = []
    for mark in drawing.marks:
        if isinstance(mark, Label):
            long = estimate_width(mark.text)
            left = mark.x - {"start": 0, "middle": long / 2, "end": long}[mark.anchor]
            assert left >= -1
            assert left + long <= drawing.width + 1 or name == "sweep"
            boxes.append((left, mark.y, long, mark.text))
        for x, y in mark.points if isinstance(mark, Line) else [(mark.x, mark.y)]:
            assert -1 <= x <= drawing.width + 1
            assert -1 <= y <= drawing.height + 1
    for (x, y, long, text), (other_x, other_y, other_long, other) in itertools.combinations(boxes, 2):
        beside = x + long <= other_x + 1 or other_x + other_long <= x + 1
        assert beside or abs(y - other_y) >= SIZE - 2, (text, other)


@pytest.mark.parametrize("name", list(drawings(WIDE)))
def test_a_drawing_says_what_it_shows(name: str):
    svg = render_svg(drawings(WIDE)[name])
    assert re.search(r'role="img" aria-label="[^"]{20,}"', svg)
    assert len(svg) < 20_000


@given(st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_labels_move_apart_and_keep_their_order(places: list[float]):
    found = spread(places, 0.0, 100.0)
    order = sorted(range(len(places)), key=lambda index: places[index])
    assert all(found[b] - found[a] >= GAP - 1e-6 for a, b in itertools.pairwise(order))
    assert max(found) <= 100 + 1e-6


@given(st.floats(0.001, 1e6), st.floats(1.5, 1e6), st.booleans())
def test_ticks_are_few_and_within_the_scale(low: float, factor: float, logarithmic: bool):
    scale = Scale(low, low * factor, 0, 100, logarithmic)
    ticks = scale.list_ticks()
    assert 1 <= len(ticks) <= (14 if logarithmic else 7)
    assert all(low * (1 - 1e-6) <= tick <= low * factor * (1 + 1e-6) for tick in ticks)
    assert sorted(map(scale, ticks)) == pytest.approx(list(map(scale, ticks)))


@given(st.dictionaries(st.integers(1, 2000), st.integers(1, 9), max_size=9), st.integers(0, 9))
def test_bins_and_what_did_not_end_add_up_to_all(ended: dict[int, int], unended: int):
    total = sum(ended.values()) + unended
    percent = 100 * unended / total if total else 0.0
    binned = bin_lengths(("x", percent, ended), [1, 2, 5, 50, 2001])
    assert sum(binned.shares) + binned.unended == pytest.approx(100 if total else 0)


def test_the_paper_is_marked_where_it_has_a_value():
    records = [record([(3, Cause.EOS), (30, Cause.LIMIT)], decoder=name) for name in ("greedy", "beam:2")]
    count = [
        sum(isinstance(mark, Line) for mark in chart_ratios(records, papers).draw(WIDE).marks)
        for papers in ({}, {("lstm", "greedy"): 50.0}, {("other", "greedy"): 50.0})
    ]
    assert count[1] - count[0] == 2
    assert count[2] == count[0]
    assert PHONE < NARROW < WIDE


def test_a_page_of_an_audit_names_the_text_and_shows_the_lengths_of_its_data():
    records = [record([(3, Cause.EOS), (30, Cause.PROVED)], run=run, contexts_from="test") for run in ("a", "b")]
    known = {"contexts_from": "test", "text": "some text", "prefix_length": 10, "lengths": {7: 2}}
    made = build_audit_page(records, origins=index_origins([Origin(run=run, **known) for run in ("a", "b")]))
    assert list(made.facts)[-2:] == [("text", "some text"), ("prefix length k", "10")]
    assert sum("Grey: the data's own." in chart.note for chart in made.charts) == 2
    assert len([chart for chart in made.charts if chart.title.startswith("Not ended")]) == 0, "the first screen has it"


def test_loops_stand_in_for_completions_with_what_is_proved_of_them():
    counted = record([(3, Cause.EOS), (30, Cause.PROVED), (30, Cause.PROVED), (30, Cause.LOOPING)])
    (tokens, loop), *_ = counted.counts.loops.items()
    for proved, cause, times in (
        (loop.onset, "proved infinite", "over and over on 3 of the 3 contexts that had not ended"),
        (StepSummary(), "looping", "over and over on 3 of the 3 contexts that had not ended"),
        (loop.proved, "looping", "over and over on 3 of the 3 contexts that had not ended, 2 of them proved infinite"),
    ):
        counts = structs.replace(counted.counts, loops={tokens: structs.replace(loop, text="on and", proved=proved)})
        ((shown, _),) = show_loops(structs.replace(counted, counts=counts))
        assert (shown.cause, shown.parts) == (cause, [("on and", times)])


def test_report_makes_a_page_of_records_completions_and_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    records = tmp_path / "records.jsonl"
    records.write_text(record([(3, Cause.EOS), (30, Cause.LIMIT)]).to_line() + "\n")
    completions = completion_file(tmp_path / "completions.jsonl", 50)
    step = {"text": " a", "prob": 0.5, "eos_prob": 0.1, "eos_rank": 2, "kept": 4, "removed_by": None}
    trace = {"index": 3, "prefix_text": "so", "decoder": "greedy", "cause": "limit", "steps": [step], "loop": None}
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    arguments = ["--completions", completions, "--traces", tmp_path / "trace.json"]
    main(["report", str(records), "--html", str(tmp_path / "page.html"), *map(str, arguments)])
    assert "open it in a browser" in capsys.readouterr().out
    assert "All 50 completions." in (tmp_path / "page.html").read_text()
    for wrong, said in (
        (["--completions", records], "is not a completion"),
        (["--traces", completions], "is not a trace"),
        (["--html", records], "is a file that the page is made of"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["report", str(records), "--html", str(tmp_path / "other.html"), *map(str, wrong)])
        assert end.value.code == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["report", str(records), "--completions", str(completions)])
    assert "--html FILE" in capsys.readouterr().err


# in a browser


needs_browser = pytest.mark.skipif(not (BROWSER and DRIVER), reason="there is no chromium with its driver")


@pytest.fixture(scope="module")
def driver() -> Iterator[object]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def shown(driver, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page().render(), encoding="utf-8")
    driver.set_window_size(1200, 900)
    driver.get(path.as_uri())
    return driver


def text_of(browser, selector: str) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
    )


def awaited(browser, script: str) -> None:
    """Wait until a script says true: what a browser does at its next frame is not there at once."""
    deadline = time.monotonic() + 20
    while not browser.execute_script(script):
        assert time.monotonic() < deadline, f"{script} is not true after 20 s"
        time.sleep(0.05)


@needs_browser
def test_it_loads_without_a_word_of_complaint(shown):
    assert shown.execute_script("return document.documentElement.dataset.ready") == "yes"
    assert shown.execute_script("return document.querySelectorAll('svg').length") >= 2 * len(page().charts)
    assert [line for line in shown.get_log("browser") if line["level"] in ("SEVERE", "WARNING")] == []


@needs_browser
def test_model_text_is_text(shown):
    assert shown.title == f"title {NASTY[0]}"
    assert text_of(shown, "h1") == [f"title {NASTY[0]}"]
    assert text_of(shown, ".headline") == [f"It does not {NASTY[1]}"]
    assert text_of(shown, "#fix") == [NASTY[0]]
    assert shown.execute_script("return document.querySelectorAll('body img, body b b, body script').length") == 2
    assert NASTY[0] in text_of(shown, "#cards .card")[0]
    assert text_of(shown, "#cards mark")[:2] == [f"[{NASTY[0]}]", f"[{NASTY[1]}]"]


@needs_browser
def test_tables_sort_by_number_and_by_word(shown):
    def column(place: int) -> list[str]:
        tables = "[...document.querySelectorAll('table')].at(-1)"
        return shown.execute_script(f"return [...{tables}.tBodies[0].rows].map(r => r.cells[{place}].textContent)")

    buttons = shown.execute_script(
        "return [...[...document.querySelectorAll('table')].at(-1).querySelectorAll('button')]"
    )
    buttons[1].click()
    assert column(1) == ["-1", "9", "10", "-"]
    buttons[1].click()
    assert column(1) == ["10", "9", "-1", "-"]
    buttons[2].click()
    assert [cell[:4] for cell in column(2)][:2] == ["(2.5", "(10."]
    buttons[0].click()
    assert column(0)[1:] == ["b", "c", "d"]
    assert text_of(shown, "th[aria-sort]")[-1] == "name"


@needs_browser
def test_a_context_can_be_picked_and_its_steps_read(shown):
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    def visible(selector: str) -> int:
        return shown.execute_script(
            "return [...document.querySelectorAll(arguments[0])].filter(e => e.offsetParent).length", selector
        )

    picker = Select(shown.find_element("id", "context"))
    assert [option.text for option in picker.options] == [f"one {NASTY[0]}", "two"]
    assert visible(".traced figure") == 1
    picker.select_by_index(1)
    assert visible(".traced figure") == 2
    picker.select_by_index(0)
    slider = shown.find_element("css selector", "[data-trace='0']")
    slider.send_keys(Keys.ARROW_RIGHT)
    (said,) = text_of(shown, "#step-0")
    assert said.startswith(f"step 2: {json.dumps(' ' + NASTY[0] + ' 1')} with p = 0.500; p(eos) = 0.100, rank 2, kept")
    assert slider.get_attribute("aria-valuetext") == said
    slider.send_keys(Keys.ARROW_RIGHT)
    assert "rank 3, removed by nucleus:0.2" in text_of(shown, "#step-0")[0]


@needs_browser
def test_completions_are_picked_by_decoder_and_ending(shown):
    from selenium.webdriver.support.ui import Select

    by = Select(shown.find_element("css selector", "[data-pick='by']"))
    counted = "return document.getElementById('count').textContent"
    assert shown.execute_script(counted) == "3 of 3 shown"
    by.select_by_index(1)
    assert shown.execute_script(counted) == "1 of 1 shown"
    by.select_by_index(2)
    assert shown.execute_script(counted) == "2 of 2 shown"
    by.select_by_index(0)


@needs_browser
def test_the_fix_is_copied_or_selected(shown):
    shown.find_element("id", "copy").click()
    awaited(shown, "return ['Copied', 'Selected'].includes(document.getElementById('copy').textContent)")
    if shown.find_element("id", "copy").text == "Selected":
        assert shown.execute_script("return getSelection().toString()").strip() == NASTY[0]


@needs_browser
@pytest.mark.parametrize("width", [360, 1200])
def test_it_fits_a_phone(shown, width: int):
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    shown.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    shown.refresh()
    try:
        # a page that is too wide makes a phone's window wider
        assert shown.execute_script("return Math.max(document.documentElement.scrollWidth, innerWidth)") <= width
        assert shown.execute_script("return parseFloat(getComputedStyle(document.body).fontSize)") >= 14
        seen = "return [...document.querySelectorAll(arguments[0])].filter(e => e.getBoundingClientRect().width).length"
        narrow, wide = (shown.execute_script(seen, f"svg.{name}") for name in ("narrow", "wide"))
        assert (narrow > 0) == (width < 600)
        assert (wide > 0) == (width > 600)
        letters = (
            "return Math.min(...[...document.querySelectorAll('svg text')].map(e => e.getBoundingClientRect().height)"
            ".filter(Boolean))"
        )
        assert shown.execute_script(letters) >= 11
    finally:
        shown.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        shown.refresh()


@needs_browser
def test_the_first_screen_says_everything(driver, tmp_path: Path):
    """The verdict, completions, a chart and the fix are above the fold of an ordinary screen."""
    made = replace(page(), title="Does it stop? lstm", verdict=[Sentence("lstm does not always stop.", "bad")])
    short = [(card(f"context {n}", n), card(f"context {n}", n, cause="eos")) for n in range(3)]
    (tmp_path / "page.html").write_text(replace(made, pairs=short).render(), encoding="utf-8")
    metrics = {"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get((tmp_path / "page.html").as_uri())
    bottoms = driver.execute_script(
        "return ['.headline', '.pairs', '.grid svg.wide', '#fix'].map("
        "each => document.querySelector(each).getBoundingClientRect().bottom)"
    )
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert max(bottoms) <= 900
    assert sorted(bottoms)[0] == bottoms[0]


@needs_browser
def test_dark_is_dark_and_light_is_light(shown):
    def luminances(scheme: str) -> list[float]:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        shown.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        colours = shown.execute_script(
            "const s = getComputedStyle(document.body), t = getComputedStyle(document.querySelector('svg text.f-ink'));"
            "return [s.backgroundColor, s.color, t.fill]"
        )
        parts = [[int(part) for part in re.findall(r"\d+", colour)[:3]] for colour in colours]
        return [sum(each) / 3 for each in parts]

    light_ground, *light_inks = luminances("light")
    dark_ground, *dark_inks = luminances("dark")
    luminances("light")
    assert light_ground > 200 > 100 > max(light_inks)
    assert min(dark_inks) > 200 > 100 > dark_ground


@needs_browser
def test_it_is_printed_whole(shown):
    shown.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        hidden = (
            "return ['nav', '.picker label', '#copy'].map(e => getComputedStyle(document.querySelector(e)).display)"
        )
        assert shown.execute_script(hidden) == ["none"] * 3
        assert shown.execute_script("return getComputedStyle(document.querySelector('.card p')).maxHeight") == "none"
        numbers = "return [...document.querySelectorAll('td:not(.words)')].map(e => getComputedStyle(e).whiteSpace)"
        assert set(shown.execute_script(numbers)) == {"nowrap"}
        assert len(shown.execute_cdp_cmd("Page.printToPDF", {})["data"]) > 10_000
    finally:
        shown.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@needs_browser
def test_some_completions_are_shown_and_printed_and_more_at_a_click(driver, tmp_path: Path):
    made = build_audit_page([record([(3, Cause.EOS)])], [completion_file(tmp_path / "completions.jsonl", 200)])
    (tmp_path / "page.html").write_text(made.render(), encoding="utf-8")
    driver.get((tmp_path / "page.html").as_uri())
    visible = "return [...document.querySelectorAll('#cards .card')].filter(e => e.offsetParent).length"
    there = len(made.completions)
    assert driver.execute_script(visible) == 20
    assert text_of(driver, "#count") == [f"20 of {there} shown"]
    printed = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) <= 5
    driver.find_element("id", "more").click()
    assert driver.execute_script(visible) == min(there, 120)


@needs_browser
def test_every_control_has_a_name_and_can_be_reached_by_keys(shown):
    nameless = (
        "return [...document.querySelectorAll('button, select, input, a, [role=region], svg')].filter(e => !("
        "e.textContent.trim() || e.getAttribute('aria-label') || e.closest('label'))).length"
    )
    assert shown.execute_script(nameless) == 0
    assert shown.execute_script("return [...document.querySelectorAll('[tabindex]')].every(e => e.tabIndex === 0)")
    broken = (
        "return [...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.querySelector(a.hash)).length"
    )
    assert shown.execute_script(broken) == 0


@needs_browser
def test_a_report_of_a_hundred_thousand_completions_stays_responsive(driver, tmp_path: Path):
    path = completion_file(tmp_path / "completions.jsonl", 100_000)
    made = build_audit_page([record([(3, Cause.EOS), (30, Cause.LIMIT)])], [path])
    (tmp_path / "page.html").write_text(made.render(), encoding="utf-8")
    assert len(made.render()) < 1_500_000
    started = time.monotonic()
    driver.get((tmp_path / "page.html").as_uri())
    assert time.monotonic() - started < 2
    assert "of 100,000 completions" in driver.page_source
    took = driver.execute_script(
        "const start = performance.now(), by = document.querySelector('[data-pick=by]');"
        "by.selectedIndex = 1; by.dispatchEvent(new Event('change')); document.body.offsetHeight;"
        "return performance.now() - start"
    )
    assert took < 1000
    seen = "[...document.querySelectorAll('#cards .card')].filter(e => !e.hidden).map(e => e.dataset.by)"
    assert set(driver.execute_script(f"return {seen}")) == {"greedy"}


HOSTILE = {
    "tags": "<img src=x onerror=\"document.title='taken'\">" * 40,
    "control characters": "\x1b[31m\x00\x07\u2028\u2029",
    "right to left": "\u202e\u2066 reversed",
    "a megabyte": "".join(map(str, range(180_000))),
    "one letter": "a" * 1_000_000,
    "lone surrogate": "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
}


@needs_browser
@pytest.mark.parametrize("kind", list(HOSTILE))
def test_a_hostile_model_is_shown_and_runs_nothing(driver, kind: str, tmp_path: Path):
    path = tmp_path / "completions.jsonl"
    line = {
        "decoder": "greedy",
        "context": 0,
        "cause": "limit",
        "steps": 30,
        "text": HOSTILE[kind],
        "prefix": HOSTILE[kind],
    }
    others = [{**line, "context": 1 + n, "text": "so it goes", "prefix": "on"} for n in range(40)]
    path.write_text("".join(json.dumps(each) + "\n" for each in [line, *others]))
    html = build_audit_page([record([(3, Cause.EOS), (30, Cause.LIMIT)])], [path]).render()
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    assert len(html) < 1_500_000
    driver.get((tmp_path / "page.html").as_uri())
    assert driver.title.startswith("Does it stop?")
    assert driver.execute_script("return document.documentElement.dataset.ready") == "yes"
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    shown = text_of(driver, "#cards .card")[0]
    assert "more characters)" not in shown
    assert kind != "a megabyte" or HOSTILE[kind][10_000:] in shown, "only its beginning is folded"
    assert not set("\x1b\x00\x07\u2028\u202e\u2066") & set(shown)
    assert [each for each in driver.get_log("browser") if each["level"] in ("SEVERE", "WARNING")] == []
