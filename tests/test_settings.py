"""Settings: what is written is what is read, errors name the nearest key, the experiments are the paper's."""

import tomllib
from dataclasses import MISSING, asdict, fields
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from texts import small_corpus

from eosin.data.corpus import Recipe
from eosin.errors import BadInput
from eosin.models.heads import HEADS
from eosin.models.neural_lm import CORES
from eosin.settings import parse_assignment, read_toml, resolve_kind
from eosin.training.config import Config, Training, expand_runs, merge_settings, read_settings

EXPERIMENTS = Path(__file__).parent.parent / "src" / "eosin" / "configs"
SMALLEST = {"core": {"kind": "tanh"}, "head": {"kind": "softmax"}}
PLAIN = st.one_of(st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))


def override(table: dict, assignment: str) -> dict:
    return merge_settings(table, parse_assignment(assignment))


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"))


@given(
    values=st.dictionaries(
        st.from_regex(r"\A[a-z_]+\Z"), st.one_of(PLAIN, TEXT, st.lists(PLAIN, max_size=0)), max_size=5
    )
)
def test_toml_round_trips(values: dict):
    assert tomllib.loads(tomli_w.dumps({"section": values, "other": {}})) == {"section": values, "other": {}}


@pytest.mark.parametrize("kinds", [CORES, HEADS], ids=["cores", "heads"])
def test_every_kind_can_be_set_with_its_defaults(kinds: dict):
    for kind in kinds:
        settings = resolve_kind(kinds, {"kind": kind}, "section")
        assert resolve_kind(kinds, settings, "section") == settings


def test_a_resolved_config_resolves_to_itself():
    config = Config.from_table({**SMALLEST, "training": {"epochs": 3}})
    sections = {
        "data": asdict(config.data),
        **config.resolve_architecture(99).sections,
        "training": asdict(config.training),
    }
    again = Config.from_table(tomllib.loads(tomli_w.dumps(sections)))
    assert again.resolve_architecture(99) == config.resolve_architecture(99)
    assert (again.data, again.training) == (config.data, config.training)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"trainning": {}}, "'trainning' is not a section of a settings file; did you mean 'training'?"),
        ({"training": {"learnin_rate": 1}}, "not a setting of [training]; did you mean 'learning_rate'?"),
        ({"core": {"kind": "tanh", "widht": 3}}, "not a setting of [core]; did you mean 'width'?"),
        ({"head": {"kind": "self-terminating", "epsilom": 0.1}}, "not a setting of [head]; did you mean 'epsilon'?"),
        ({"head": {"kind": "softmax", "epsilon": 0.1}}, "'epsilon' is not a setting of [head]; there are none"),
        ({"core": {"kind": "lstn"}}, "'lstn' is not a kind of core; did you mean 'lstm'?"),
        ({"core": {"width": 3}}, "[core] lacks 'kind'; it is one of tanh, lstm, gru, transformer"),
        ({"core": {"kind": ["tanh"]}}, "['tanh'] is not a kind of core"),
        ({"data": {"tokenization": "bytes"}}, "'bytes' is not a tokenization; there are word, bpe"),
        ({"data": {"contxt": 3}}, "did you mean 'context'?"),
        ({"data": {"context": 0}}, "[data] context must lie between 1 and 10000, got 0"),
        ({"data": {"vocab_size": -1}}, "[data] vocab_size must lie between 1 and 10000000"),
        ({"output": {"tyed": True}}, "not a setting of [output]; did you mean 'tied'?"),
        ({"output": {"tied": 1}}, "[output] tied must be true or false, got 1"),
        ({"core": {"kind": "tanh", "width": 1.5}}, "[core] width must be a whole number, got 1.5"),
        ({"core": {"kind": "tanh", "width": True}}, "[core] width must be a whole number, got True"),
        ({"core": {"kind": "tanh", "width": 0}}, "[core] width must lie between 1 and 65536, got 0"),
        ({"core": {"kind": "tanh", "dropout": 1}}, "[core] dropout must lie in [0, 1), got 1.0"),
        (
            {"head": {"kind": "non-monotonic", "epsilon": 0}},
            "[head] epsilon must lie strictly between 0 and 1, got 0.0",
        ),
        ({"training": {"batch": 0}}, "[training] batch must be at least 1, got 0"),
        ({"training": {"learning_rate": -1e-3}}, "[training] learning_rate must be positive and finite, got -0.001"),
        ({"training": {"anneal": 2}}, "[training] anneal must be at most 1"),
        ({"training": {"warmup": -1}}, "[training] warmup must be at least 0"),
        ({"core": {"kind": "lstm", "width": 10**12}}, "[core] width must lie between 1 and 65536"),
        ({"data": {"context": 10**12}}, "[data] context must lie between 1 and 10000"),
        ({"training": {"learning_rate": float("inf")}}, "must be positive and finite, got inf"),
        ({"training": 3}, "[training] must be a section, got training = 3"),
    ],
)
def test_bad_settings(table: dict, says: str):
    with pytest.raises(BadInput) as error:
        Config.from_table({**SMALLEST, **table})
    assert says in str(error.value)


@pytest.mark.parametrize("text", [b"a = ", b"\xff\xfe", b"[core", b"a = " + b"9" * 5000, b"a = " + b"[" * 5000])
def test_files_that_are_not_toml(tmp_path: Path, text: bytes):
    path = tmp_path / "settings.toml"
    path.write_bytes(text)
    with pytest.raises(BadInput, match="is not a TOML file"):
        read_toml(path)
    with pytest.raises(BadInput, match="cannot read the settings file"):
        read_toml(tmp_path / "nothing.toml")


@pytest.mark.parametrize("text", ["a = 2026-01-01", "[core]\nwidth = 07:32:00", "a = [[2026-01-01T07:32:00Z]]"])
def test_a_date_is_no_setting(tmp_path: Path, text: str):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match="has a date"):
        read_toml(path)


@pytest.mark.parametrize("odd", ["2026-01-01", "07:32:00", "[2026-01-01]", "9" * 5000, "[" * 5000, "a b"])
def test_what_is_no_value_is_a_string(odd: str):
    assert override(SMALLEST, f"core.width={odd}")["core"]["width"] == odd


def test_settings_on_the_command_line():
    table = override(override(override(SMALLEST, "core.width=7"), "data.source=a b.txt"), "output.tied = true")
    assert table["core"] == {"kind": "tanh", "width": 7}
    assert table["data"] == {"source": "a b.txt"}
    assert table["output"] == {"tied": True}
    for wrong in ("width=3", "core.width", "core.=3", "=3"):
        with pytest.raises(BadInput, match=r"section\.key=value"):
            override(SMALLEST, wrong)


def test_another_kind_does_not_inherit_settings():
    base = {"head": {"kind": "self-terminating", "epsilon": 0.5}, "core": {"kind": "tanh", "width": 5}}
    change = {"head": {"kind": "softmax"}, "core": {"width": 6}}
    assert merge_settings(base, change) == {"head": {"kind": "softmax"}, "core": {"kind": "tanh", "width": 6}}
    assert override(base, "head.kind=softmax")["head"] == {"kind": "softmax"}
    assert override(base, "core.kind=lstm")["core"] == {"kind": "lstm", "width": 5}
    assert override({"core": 3}, "core.width=3") == {"core": {"width": 3}}


PAPER = {
    ("word", "tanh"): {"width": 256, "dropout": 0.3, "tied": True},
    ("word", "lstm"): {"width": 512, "dropout": 0.5, "tied": True},
    ("bpe", "tanh"): {"width": 256, "dropout": 0.5, "tied": False},
    ("bpe", "lstm"): {"width": 256, "dropout": 0.3, "tied": False},
}
"""What the two grid searches of the appendix selected."""
HEADS_OF_PAPER = {
    "softmax": {"kind": "softmax"},
    "st-1e-2": {"kind": "self-terminating", "epsilon": 1e-2},
    "st-1e-3": {"kind": "self-terminating", "epsilon": 1e-3},
    "st-1e-4": {"kind": "self-terminating", "epsilon": 1e-4},
    "nmst-1e-3": {"kind": "non-monotonic", "epsilon": 1e-3},
}


@pytest.mark.parametrize("head", HEADS_OF_PAPER)
@pytest.mark.parametrize(("tokens", "core"), PAPER)
def test_the_experiments_are_the_paper_s(tokens: str, core: str, head: str):
    table = read_settings(EXPERIMENTS / f"{tokens}-{core}-{head}.toml")
    config, chosen = Config.from_table(table), PAPER[tokens, core]
    # the paper's BPE text had no <unk>
    unknown = "drop" if tokens == "bpe" else "keep"
    assert config.data == Recipe("wikitext-2-sentences", tokens, context=10, unknown=unknown)
    model = config.resolve_architecture(50)
    assert model.core == {
        "kind": core, "width": chosen["width"], "layers": 2, "dropout": chosen["dropout"], "learned_start": False
    }  # fmt: skip
    assert model.head == HEADS_OF_PAPER[head]
    assert model.output["tied"] is chosen["tied"]
    settings = asdict(config.training)
    assert {key: settings[key] for key in ("batch", "learning_rate", "clip", "epochs", "patience", "anneal")} == {
        "batch": 32, "learning_rate": 1e-3, "clip": 1.0, "epochs": 100, "patience": 10, "anneal": 0.5
    }  # fmt: skip
    assert config.training == Training(torch_start=True)
    assert float(model.build().embedding.weight.detach().std()) == pytest.approx(1, abs=0.1)


def test_there_are_no_other_experiments():
    expected = {f"{tokens}-{core}-{head}" for tokens, core in PAPER for head in HEADS_OF_PAPER} | {
        "grid",
        "demo",
        "demo-st",
        "demo-lstm",
        "demo-lstm-st",
        "quick-softmax",
        "quick-st-1e-3",
    }
    tuned = {f"{model}-{head}" for model in ("gpt2", "smollm2") for head in ("softmax", "st-2.5e-3", "nmst-2.5e-3")}
    assert {path.stem for path in EXPERIMENTS.glob("*.toml")} == expected | tuned | {"smollm2"}


def test_the_grid_is_the_paper_s_and_holds_what_it_selected():
    runs = expand_runs(read_settings(EXPERIMENTS / "grid.toml"))
    configs = [Config.from_table(table) for table in runs.values()]
    assert len(runs) == len(set(runs)) == 2 * 2 * 3 * 3 * 2
    found = {
        (c.data.tokenization, m.core["kind"], m.core["width"], m.core["dropout"], m.output["tied"])
        for c in configs
        for m in [c.resolve_architecture(50)]
    }
    assert len(found) == 72
    assert {(*key, *chosen.values()) for key, chosen in PAPER.items()} <= found


@pytest.mark.parametrize("sweep", [3, {}, {"core.width": 3}, {"core.width": []}, {"width": [3]}])
def test_bad_sweeps(sweep: dict):
    with pytest.raises(BadInput, match=r"\[sweep\] needs keys"):
        expand_runs({**SMALLEST, "sweep": sweep})


@pytest.mark.parametrize("settings", [Training, Recipe])
def test_every_setting_has_a_default(settings: type):
    assert all(field.default is not MISSING for field in fields(settings))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('base = "self.toml"', "starts from itself"),
        ("base = 3", "base must be the name of a settings file, got 3"),
        ('base = "nowhere.toml"', "cannot read the settings file"),
    ],
)
def test_bad_bases(tmp_path: Path, text: str, says: str):
    (tmp_path / "self.toml").write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=says):
        read_settings(tmp_path / "self.toml")


def test_labels_are_file_names_and_differ():
    sweep = {"data.source": ["/etc/../a b.txt", "c"], "core.kind": ["tanh"]}
    assert set(expand_runs({**SMALLEST, "sweep": sweep})) == {"source-_etc_.._a_b.txt-tanh", "source-c-tanh"}
    with pytest.raises(BadInput, match="would both be called"):
        expand_runs({**SMALLEST, "sweep": {"core.width": [3, 3]}})


def test_a_prepared_corpus_must_not_contradict_the_settings(tmp_path: Path):
    corpus = small_corpus(tmp_path, count=60)
    assert Config.from_table({**SMALLEST, "data": {"source": "x"}}).resolve(corpus)["data"]["tokenization"] == "word"
    with pytest.raises(BadInput, match=r"data\.tokenization is 'bpe' in the settings, but .* with 'word'"):
        Config.from_table({**SMALLEST, "data": {"tokenization": "bpe"}}).resolve(corpus)
    with pytest.raises(BadInput, match=r"output\.eos_id follows from the corpus: it is 2, not 9"):
        Config.from_table({**SMALLEST, "output": {"eos_id": 9}}).resolve(corpus)


def test_a_corpus_that_is_passed_in_is_the_one_that_is_written_down(tmp_path: Path):
    corpus = small_corpus(tmp_path, count=60)
    assert Config.from_table(SMALLEST).resolve(corpus)["data"] == asdict(corpus.recipe)
