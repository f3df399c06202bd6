"""The page: it holds all it needs, shows model text as text, and works in a real browser."""

import itertools
import json
import re
import shutil
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from records_made_up import L, record

from eosin.causes import Cause
from eosin.cli.main import main
from eosin.report import charts
from eosin.report.audit_page import build_audit_page
from eosin.report.audits import to_percent
from eosin.report.charts import trace_survival
from eosin.report.completions import MOST_BEFORE, MOST_REPEATED, MOST_SHOWN, Sample, sample_completions
from eosin.report.completions import read_completion as shown_on_the_page
from eosin.report.page import Page, read_plotly
from eosin.report.tables import Column, Table
from eosin.report.verdict import Sentence

NASTY = [
    '<script>document.title="taken"</script>',
    "</script><img src=x onerror=alert(1)>",
    "&amp; <b>bold</b> \u2028 ]]>",
]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


def example(group: str, decoder: str, text: str, loop: dict[str, int] | None = None) -> dict[str, object]:
    steps = [[f" {text} {n}", 0.5, 10.0**-n, n + 1, 3, None if n % 2 else "nucleus:0.2"] for n in range(30)]
    return {
        "group": group,
        "run": "lstm",
        "decoder": decoder,
        "context": 4,
        "prefix": f"a prefix {text}",
        "cause": "limit",
        "steps": steps,
        "loop": loop,
    }


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
    return Page(
        title=f"title {NASTY[0]}",
        verdict=[Sentence(f"It does not {NASTY[1]}", "bad"), *made.verdict],
        charts=made.charts,
        tables=[*made.tables, words],
        examples=[
            example(f"one {NASTY[0]}", "greedy", NASTY[0], {"onset": 5, "period": 2}),
            example("two", "greedy", "second"),
            example("two", "nucleus:0.2", "third"),
        ],
        completions=[
            {
                "by": "greedy",
                "context": n,
                "cause": "looping",
                "steps": 30,
                "before": NASTY[n % 3],
                "repeated": NASTY[0],
            }
            for n in range(completions)
        ],
        total=100_000,
    )


def test_the_page_asks_nothing_of_anyone():
    html = page().render().replace(read_plotly(), "")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", html)
    assert "default-src 'none'" in html
    assert "a sample: 3 of 100,000 completions." in html.lower()


@given(st.text())
def test_no_text_gets_out_of_its_place(text: str):
    table = Table((Column("c", left=True),), ((text,),), text, text)
    made = Page(text, [Sentence(text)], tables=[table], completions=[{"by": text, "before": text}]).render()
    made = made.replace(read_plotly(), "")
    assert made.count("</script>") == 3
    assert made.count("<script") == 3
    held = re.search(r'id="data">(.*?)</script>', made, re.DOTALL)
    assert held
    assert json.loads(held[1])["completions"] == [{"by": text, "before": text}]
    shown = re.search(r'<div class="verdict">\n<p class="">(.*?)</p>\n</div>', made, re.DOTALL)
    assert shown
    assert unescape(shown[1]) == text
    assert "<" not in shown[1]


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


def test_a_report_of_a_hundred_thousand_completions_is_small(tmp_path: Path):
    path = completion_file(tmp_path / "completions.jsonl", 100_000)
    chosen, there = sample_completions([path])
    assert there == 100_000
    assert len(chosen) <= 4 * MOST_SHOWN
    looping = [each for each in chosen if each["cause"] == "looping"]
    assert {(each["before"], each["repeated"]) for each in looping} == {("so it", " goes on and on and on")}


@pytest.mark.parametrize("before", [0, MOST_BEFORE, MOST_BEFORE + 1, 5 * MOST_BEFORE])
@pytest.mark.parametrize("repeated", [1, MOST_REPEATED, 5 * MOST_REPEATED])
def test_what_repeats_is_told_apart_however_late_it_begins(before: int, repeated: int):
    loop = {"onset": before + 1, "period": 1, "before": "a" * before}
    line = {"decoder": "greedy", "context": 1, "cause": "looping", "steps": 9, "loop": loop}
    held = shown_on_the_page(json.dumps({**line, "text": "a" * before + "b" * repeated}))
    assert held["before"] == ("a" * before if before <= MOST_BEFORE else "a" * (MOST_BEFORE - 3) + "...")
    assert held["repeated"] == ("b" * repeated if repeated <= MOST_REPEATED else "b" * (MOST_REPEATED - 3) + "...")


@given(st.lists(st.integers(1, L), max_size=30))
def test_a_curve_of_what_was_counted_goes_down_in_steps(ends: list[int]):
    """Between two points of it nothing ended, and it is drawn until the step before it is zero."""
    counted = record([*((end, Cause.EOS) for end in ends), *[(L, Cause.LIMIT)] * (not ends)])
    drawn = trace_survival(counted)
    assert drawn["line"]["shape"] == "hv"
    held = dict(zip(drawn["x"], drawn["y"], strict=True))
    shares, last = {}, None
    for step in range(1, L + 1):
        last = held.get(step, last)
        shares[step] = last
    for step, share in shares.items():
        assert (share or 0.0) == pytest.approx(to_percent(counted.counts.ratio(step)))
    flat = [step for step, share in held.items() if share is not None]
    above = [step for step in range(1, L + 1) if counted.counts.ratio(step).value > 0]
    assert not above or max(flat) == max(above)


@pytest.mark.parametrize("most", [2, L, 2 * L])
def test_a_curve_with_too_many_steps_is_drawn_through_some_of_them(most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(charts, "MOST_STEPS", most)
    counted = record([(end, Cause.EOS) for end in range(1, L + 1)])
    drawn = trace_survival(counted)
    assert drawn["line"]["shape"] == ("hv" if most >= L else "linear")
    assert len(drawn["x"]) <= most + 2
    assert drawn["y"] == [to_percent(counted.counts.ratio(step)) or None for step in drawn["x"]]


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
    for place in range(len(page().charts)):
        shown.execute_script(f"document.querySelector('[data-chart=\"{place}\"]').scrollIntoView()")
        awaited(shown, f"return !!document.querySelector('[data-chart=\"{place}\"] .main-svg')")
    assert [line for line in shown.get_log("browser") if line["level"] in ("SEVERE", "WARNING")] == []


@needs_browser
def test_model_text_is_text(shown):
    assert shown.title == f"title {NASTY[0]}"
    assert text_of(shown, "h1") == [f"title {NASTY[0]}"]
    assert f"It does not {NASTY[1]}" in text_of(shown, ".verdict p")
    assert shown.execute_script("return document.querySelectorAll('body img, body b').length") == 0
    assert NASTY[0] in text_of(shown, "#completions p")[0]
    assert text_of(shown, "#completions mark") == [NASTY[0]] * 3


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
def test_a_context_can_be_picked_and_its_trace_shown(shown):
    from selenium.webdriver.support.ui import Select

    picker = Select(shown.find_element("id", "context"))
    assert [option.text for option in picker.options] == [f"one {NASTY[0]}", "two"]
    picker.select_by_index(1)
    assert len(text_of(shown, "#traced .completion")) == 2
    assert text_of(shown, "#traced mark") == []
    assert len(shown.execute_script("return document.getElementById('trace').data")) == 2
    picker.select_by_index(0)
    (marked,) = text_of(shown, "#traced mark")
    assert marked.startswith(f" {NASTY[0]} 4")
    hover = shown.execute_script("return document.getElementById('trace').data[0].text[0]")
    assert "<script>" not in hover
    assert "removed by nucleus:0.2" in hover


@needs_browser
@pytest.mark.parametrize("width", [360, 1200])
def test_it_fits_a_phone(shown, width: int):
    from selenium.webdriver.support.ui import Select

    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    shown.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    shown.refresh()
    try:
        # a page that is too wide makes a phone's window wider
        assert shown.execute_script("return Math.max(document.documentElement.scrollWidth, innerWidth)") <= width
        size = shown.execute_script("return parseFloat(getComputedStyle(document.body).fontSize)")
        assert size >= 14
        Select(shown.find_element("id", "context")).select_by_index(1)
        awaited(shown, "return document.querySelectorAll('#trace .legend .traces').length === 2")
        title, legend, chart = (
            shown.execute_script("return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", each)
            for each in ("#trace .xtitle", "#trace .legend", "#trace")
        )
        beside, below = legend["left"] >= title["right"], legend["top"] >= title["bottom"] - 1
        assert below if width < 600 else beside
        assert legend["bottom"] <= chart["bottom"] + 1
    finally:
        shown.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        shown.refresh()


@needs_browser
def test_dark_is_dark_and_light_is_light(shown):
    def luminances(scheme: str) -> tuple[float, float]:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        shown.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        colours = shown.execute_script("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]")
        parts = [[int(part) for part in re.findall(r"\d+", colour)[:3]] for colour in colours]
        return tuple(sum(each) / 3 for each in parts)

    light_ground, light_ink = luminances("light")
    dark_ground, dark_ink = luminances("dark")
    assert light_ground > 200 > 100 > light_ink
    assert dark_ink > 200 > 100 > dark_ground
    drawn_with = "return document.getElementById('trace')._fullLayout.font.color.toLowerCase() === "
    awaited(shown, f"{drawn_with} '#f0e8ee'")
    luminances("light")
    awaited(shown, f"{drawn_with} '#24161d'")


@needs_browser
def test_a_report_of_a_hundred_thousand_completions_stays_responsive(driver, tmp_path: Path):
    path = completion_file(tmp_path / "completions.jsonl", 100_000)
    made = build_audit_page([record([(3, Cause.EOS), (30, Cause.LIMIT)])], [path])
    (tmp_path / "page.html").write_text(made.render(), encoding="utf-8")
    assert len(made.render()) < len(read_plotly()) + 1_000_000
    driver.get((tmp_path / "page.html").as_uri())
    assert "of 100,000 completions" in driver.page_source
    took = driver.execute_script(
        "const start = performance.now(), by = document.getElementById('completions-by');"
        "by.value = '1'; by.dispatchEvent(new Event('change')); document.body.offsetHeight;"
        "return performance.now() - start"
    )
    assert took < 1000
    assert set(text_of(driver, "#completions .tag:first-child")) == {"greedy"}


@needs_browser
@pytest.mark.parametrize("models", [1, 2, 6])
def test_models_that_fail_alike_are_all_seen(driver, models: int, tmp_path: Path):
    same = [(3, Cause.EOS), (30, Cause.LIMIT)]
    records = [record(same, run=f"model-{n}", decoder=name) for n in range(models) for name in ("greedy", "top-k:2")]
    (tmp_path / "page.html").write_text(build_audit_page(records).render(), encoding="utf-8")
    driver.get((tmp_path / "page.html").as_uri())
    awaited(driver, f"return document.querySelectorAll('[data-chart=\"0\"] .point').length === {2 * models}")
    points = "[...document.querySelectorAll('[data-chart=\"0\"] .point')].map(e => e.getBoundingClientRect())"
    heights = sorted(driver.execute_script(f"return {points}.map(box => [box.top, box.bottom])"))
    assert all(above[1] <= below[0] for above, below in itertools.pairwise(heights))
