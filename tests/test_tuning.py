"""Fine-tuning of pretrained models: the GPT-2 experiment on a small GPT-2 with random weights."""

import csv
import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from simulated_accelerator import NAME, simulated_accelerator
from texts import real_sentences, write_lines
from torch.testing import assert_close
from watches import stop_after, stop_now

transformers = pytest.importorskip("transformers")
import tokenizers  # noqa: E402
from tokenizers import decoders, models, pre_tokenizers, trainers  # noqa: E402

import eosin  # noqa: E402
from eosin.cli.main import main  # noqa: E402
from eosin.data.corpus import Corpus  # noqa: E402
from eosin.errors import BadInput  # noqa: E402
from eosin.events import Stopped  # noqa: E402
from eosin.hub.tuning import FineTuner, FineTuningConfig  # noqa: E402
from eosin.models.heads import HEADS, SelfTerminating  # noqa: E402
from eosin.training.evaluation import evaluate  # noqa: E402
from eosin.training.loop import train  # noqa: E402

END, CONTEXT = "<|endoftext|>", 10
CPU = torch.device("cpu")
PAPER = Path(__file__).with_name("paper_tables.tex")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT-2 in a folder, and a text of lines beside it."""
    folder = tmp_path_factory.mktemp("tuning")
    text = write_lines(folder / "text.txt", real_sentences(300))
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner.train(
        [str(text)],
        trainers.BpeTrainer(vocab_size=400, special_tokens=[END], initial_alphabet=alphabet, show_progress=False),
    )
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, bos_token=END)
    words.save_pretrained(folder / "gpt2")
    config = transformers.GPT2Config(
        vocab_size=400, n_embd=16, n_layer=1, n_head=2, n_positions=512, eos_token_id=0, bos_token_id=0
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.GPT2LMHeadModel(config).save_pretrained(folder / "gpt2")
    return folder


def settings(place: Path, **changes: dict[str, object]) -> FineTuningConfig:
    table = {
        "data": {"source": str(place / "text.txt"), "context": CONTEXT, "short": "drop"},
        "pretrained": {"model": str(place / "gpt2")},
        "head": {"kind": "st", "epsilon": 0.01},
        "training": {"steps": 7, "validate_every": 3, "tokens": 128, "learning_rate": 1e-2, "log_every": 2},
    }
    return FineTuningConfig.from_table(
        {section: {**values, **changes.get(section, {})} for section, values in table.items()}
    )


@pytest.fixture(scope="module")
def corpus(place: Path) -> Corpus:
    return settings(place).open_corpus(place)


@pytest.mark.parametrize("float64", [True, False], ids=["float64", "no-float64"])
def test_an_accelerator_learns_what_the_cpu_learns(
    place: Path, tmp_path: Path, float64: bool, monkeypatch: pytest.MonkeyPatch
):
    # save_pretrained looks at the storage of weights, which the simulated ones have none of
    monkeypatch.setattr(FineTuner, "export", lambda *_: None)
    folder = Path(shutil.copytree(place / "gpt2", tmp_path / "gpt2"))
    # devices draw differently, and torch unties the weights that it moves to a device written in Python
    plain = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0) | {"tie_word_embeddings": False}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.GPT2LMHeadModel(transformers.GPT2Config.from_pretrained(folder, **plain)).save_pretrained(folder)
    config = settings(place, pretrained={"model": str(folder)})
    with simulated_accelerator(float64):
        expected, found = (
            train(config, config.open_corpus(tmp_path), tmp_path / device, device=device, precision="float32")
            for device in ("cpu", NAME)
        )
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_line_is_a_sequence(place: Path, corpus: Corpus):
    words = transformers.AutoTokenizer.from_pretrained(place / "gpt2")
    lines = [line for n, line in enumerate((place / "text.txt").read_text().splitlines()) if n % 20 == 19]
    rows = [words(line)["input_ids"] for line in lines]
    kept = [row for row in rows if len(row) > CONTEXT]
    test = corpus.splits["test"]
    assert len(kept) == len(test)
    for row, example in zip(kept, test, strict=True):
        assert [*example.prefix.tolist(), *example.continuation.tolist()] == [*row, words.eos_token_id]
        assert len(example.prefix) == 1  # all but the first token is predicted
    assert corpus.take_contexts("test").tolist() == [row[:CONTEXT] for row in kept]
    assert corpus.count_after_context("test").tolist() == [len(row) + 1 - CONTEXT for row in kept]
    assert corpus.statistics["average_length"] == pytest.approx(
        sum(len(example.continuation) for example in corpus.train) / len(corpus.train)
    )
    assert words.eos_token_id not in corpus.take_contexts("random", 50)
    assert corpus.take_contexts("random", 50).shape == (50, CONTEXT)
    again = settings(place).open_corpus(place)  # from its files
    assert (again.digest, again.layout) == (corpus.digest, corpus.layout)


def test_batches_hold_at_most_so_many_tokens_and_every_line_once(place: Path, corpus: Corpus):
    trainer = settings(place, training={"steps": 10_000, "validate_every": 10_000}).build_trainer(
        corpus, CPU, "float32"
    )
    plan, lines = trainer.plan_epoch(), len(corpus.train)
    assert len(plan) == 10_000
    seen: list[int] = []
    for rows in plan:
        batch = trainer.gather_batch(rows)
        assert (batch.continuation.shape[1] + 1) * len(rows) <= 128
        seen += rows.tolist()
    passes = [sorted(seen[start : start + lines]) for start in range(0, len(seen) - lines, lines)]
    assert len(passes) > 10
    assert all(each == list(range(lines)) for each in passes)
    longest = corpus.train.lengths.argmax()[None]
    short = settings(place, training={"tokens": 20}).build_trainer(corpus, CPU, "float32")
    assert corpus.train.lengths[longest] > 19 == short.gather_batch(longest).continuation.shape[1]


def test_a_token_counts_the_same_in_batches_of_any_size(place: Path, corpus: Corpus):
    """Gradients of batches add up."""
    still = {"learning_rate": 1e-30, "clip": 1e9}
    trainer = settings(place, training=still).build_trainer(corpus, CPU, "float32")
    trainer.model.eval()  # without dropout
    shortest = corpus.train.lengths.argsort()[:3]
    (_, once), (_, thrice) = (trainer.learn(trainer.gather_batch(rows)) for rows in (shortest, shortest.repeat(3)))
    assert thrice == pytest.approx(3 * once, rel=1e-4)


def test_the_rate_falls_to_zero_and_the_best_weights_are_kept(place: Path, corpus: Corpus, tmp_path: Path):
    result = train(settings(place), corpus, tmp_path / "run")
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    assert [event["rate"] for event in steps] == pytest.approx([1e-2 * (1 - step / 7) for step in (2, 4, 6)])
    looks = [event for event in events if event["event"] == "epoch"]
    assert [event["step"] for event in looks] == [3, 6, 7]
    best = min(event["valid_perplexity"] for event in looks)
    assert result["valid_perplexity"] == pytest.approx(best, rel=1e-5)
    model = eosin.load(tmp_path / "run")
    assert evaluate(model, corpus.splits["test"], CPU).perplexity == pytest.approx(result["test_perplexity"], rel=1e-5)
    assert best < evaluate(settings(place).base.build(), corpus.splits["valid"], CPU).perplexity


def test_a_run_that_was_stopped_ends_with_the_same_bits(place: Path, corpus: Corpus, tmp_path: Path):
    train(settings(place), corpus, tmp_path / "whole")
    for calls in (1, 3, 2, 5, 1000):
        try:
            train(settings(place), corpus, tmp_path / "cut", watch=stop_after(calls))
        except Stopped:
            continue
    whole, cut = (eosin.load(tmp_path / name).state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_without_steps_a_model_is_measured_as_it_comes(place: Path, corpus: Corpus, tmp_path: Path):
    config = settings(place, training={"steps": 0}, head={"kind": "nmst"})
    with pytest.raises(Stopped):
        train(config, corpus, tmp_path / "run", watch=stop_now)
    result = train(config, corpus, tmp_path / "run")
    pretrained, run = config.base.build(), eosin.load(tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(pretrained.parameters(), run.parameters(), strict=True))
    found = evaluate(pretrained, corpus.splits["test"], CPU).perplexity
    assert result["test_perplexity"] == pytest.approx(found, rel=1e-6)


def test_a_part_of_the_lines_is_measured_if_asked_for(place: Path, corpus: Corpus, tmp_path: Path):
    config = settings(place, training={"steps": 0, "lines": 3})
    result = train(config, corpus, tmp_path / "run")
    test, model = corpus.splits["test"], config.base.build()
    with torch.no_grad():
        scores = [model.score(each.prefix[None], each.continuation[None])[0] for each in (test[0], test[1], test[2])]
    assert result["test_perplexity"] == pytest.approx(math.exp(-torch.cat(scores).mean()), rel=1e-5)


@pytest.mark.parametrize("head", [{"kind": "softmax"}, {"kind": "st", "epsilon": 0.01}, {"kind": "nmst"}], ids=str)
def test_a_finished_run_is_opened_by_eosin_and_by_transformers(
    head: dict[str, object], place: Path, corpus: Corpus, tmp_path: Path
):
    config = settings(place, training={"steps": 2})
    config = FineTuningConfig.from_table(
        {
            **config.sections,
            "data": {"source": str(place / "text.txt"), "context": CONTEXT, "short": "drop"},
            "head": head,
        }
    )
    train(config, corpus, tmp_path / "run")
    ours = eosin.load(tmp_path / "run")
    theirs = eosin.load(f"hf:{tmp_path / 'run' / 'model'}")
    prefix = corpus.take_contexts("test", 4)
    with torch.no_grad():
        assert_close(ours.prefill(prefix)[0], theirs.prefill(prefix)[0])
    assert ours.eos_ids == theirs.eos_ids == (0,)


def test_the_product_of_a_self_terminating_head_includes_the_context(place: Path, corpus: Corpus):
    model, plain = settings(place).base.build(), settings(place, head={"kind": "st"}).base.build().model.inner
    prefix = corpus.take_contexts("test", 3)
    with torch.no_grad():
        logits, state = model.prefill(prefix)
        logits, _ = model.step(prefix[:, 0], state)
        read = torch.cat([prefix, prefix[:, :1]], dim=1)
        survived = 1 - plain(read).logits.double().softmax(-1)[..., 0]
    expected = 1 - (survived * (1 - 0.01)).prod(1)
    assert_close(logits.double().softmax(-1)[:, 0], expected, atol=1e-5, rtol=1e-4)
    padded = torch.cat([torch.zeros(3, 2, dtype=torch.long), prefix], dim=1)
    mask = torch.ones_like(padded).index_fill(1, torch.tensor([0, 1]), 0)
    with torch.no_grad():
        beside = model.model(input_ids=padded, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))
        assert_close(beside.logits[:, -1], model.prefill(prefix)[0], atol=1e-4, rtol=1e-4)


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def reproduced(place: Path) -> tuple[Path, list[str]]:
    text, model = place / "text.txt", place / "gpt2"
    changes = [f"data.source={text}", f"pretrained.model={model}", "training.steps=6", "training.validate_every=3"]
    changes += ["training.tokens=256"]
    command = ["reproduce", "gpt2", "--out", str(place / "out"), "--runs", str(place / "runs")]
    command += [part for change in changes for part in ("--set", change)]
    main(command)
    return place / "out", command


def test_the_experiment_is_reproduced(reproduced: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]):
    out, command = reproduced
    rows = {row["head"]: row for row in csv_rows(out / "tables" / "table-4.csv")}
    ratios = {head: float(row["r_L (%): ours"]) for head, row in rows.items()}
    assert ratios["softmax"] > 0
    assert ratios["self-terminating 2.5e-3"] == ratios["softmax on a floor of 2.5e-3"] == 0
    assert all(1 < float(row["perplexity: ours"]) < 1000 for row in rows.values())
    assert (out / "figures" / "lengths-gpt2.pdf").stat().st_size > 1000
    lengths = {row["lengths of"]: row for row in csv_rows(out / "tables" / "lengths-gpt2.csv")}
    assert lengths["the data"]["r_L (%)"] == "0.0"
    # greedy decoding ends when the head says, the context included
    assert float(lengths["GPT2-117M, self-terminating 2.5e-3"]["95%"]) <= math.ceil(math.log(2) / -math.log1p(-2.5e-3))
    before = {path: path.stat().st_mtime_ns for path in (out / "records").rglob("*.jsonl")}
    main(command)
    main(["reproduce", "--out", str(out), "--tables-only"])  # knows what was set
    assert before == {path: path.stat().st_mtime_ns for path in (out / "records").rglob("*.jsonl")}
    assert "--set training.steps=6" in (out / "README.md").read_text()


def test_a_fine_tuned_run_is_audited_as_any_other(
    reproduced: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
):
    run = reproduced[0].parent / "runs" / "gpt2-st-2.5e-3"
    capsys.readouterr()
    main(["audit", str(run), "--decoders", "greedy", "--count", "5", "--max-steps", "300", "--json"])
    assert json.loads(capsys.readouterr().out)["greedy"]["ratio"] == 0
    main(["train", str(run)])
    assert re.search(r" -\s+\d+\.\d\d\s+\d+\.\d\d$", capsys.readouterr().out.rstrip())
    prompt = "The ship was"
    words = transformers.AutoTokenizer.from_pretrained(run / "model")
    for model in (str(run), f"hf:{run / 'model'}"):
        main(["decode", model, "--prompt", prompt, "--max-steps", "20", "--json"])
        assert json.loads(capsys.readouterr().out)["prefix_tokens"] == words(prompt)["input_ids"]


def test_the_papers_numbers_of_gpt2_are_the_papers():
    from eosin.paper.exhibits import load_exhibit

    found = re.findall(r"GPT2-117M(?: ST)?\s*& ([\d.]+) & ([\d.]+)", PAPER.read_text(encoding="utf-8"))
    ours = [each.paper for each in load_exhibit("table-4").models if each.paper]
    assert [(each["ratio"], each["perplexity"]) for each in ours] == [([float(a)], [float(b)]) for a, b in found]


def test_special_tokens_in_a_text_are_text(place: Path, tmp_path: Path):
    lines = [f"{line} {END} and on it goes" for line in real_sentences(60)]
    config = settings(place, data={"source": str(write_lines(tmp_path / "text.txt", lines))})
    corpus = config.open_corpus(tmp_path)
    for example in corpus.train:
        assert example.continuation.tolist().count(0) == 1


def test_a_corpus_of_another_tokenizer_is_not_taken_for_the_same(place: Path, tmp_path: Path):
    model = shutil.copytree(place / "gpt2", tmp_path / "gpt2")
    config = settings(place, pretrained={"model": str(model)})
    config.open_corpus(tmp_path)
    table = json.loads((model / "tokenizer.json").read_text())
    vocab = table["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (model / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(BadInput, match="with another tokenizer"):
        config.open_corpus(tmp_path)


def test_lines_and_completions_end_with_the_positions(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    long = " ".join(real_sentences(60))
    text = write_lines(tmp_path / "text.txt", [*real_sentences(60), *[long] * 20])
    config = settings(place, data={"source": str(text)}, training={"steps": 1, "tokens": 600})
    corpus = config.open_corpus(tmp_path)
    assert corpus.splits["valid"].lengths.max() > 512
    assert corpus.splits["train"].lengths.max() > 512
    assert train(config, corpus, tmp_path / "run")["valid_perplexity"] > 1
    main(["decode", str(tmp_path / "run"), "--prompt", "The ship was"])
    assert re.search(r"a completion has at most 5\d\d tokens", capsys.readouterr().err)


def test_a_full_disk_while_exporting_is_one_line_and_the_same_command_goes_on(
    place: Path, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*arguments: object, **others: object) -> None:
        (tmp_path / "run" / "model.partial").mkdir()
        raise SafetensorError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(transformers.PreTrainedModel, "save_pretrained", full)
        with pytest.raises(OSError, match="cannot write"):
            train(settings(place), corpus, tmp_path / "run")
    assert not list((tmp_path / "run").glob("*.partial"))
    assert train(settings(place), corpus, tmp_path / "run")["test_perplexity"] > 1
    assert (tmp_path / "run" / "model" / "config.json").is_file()


def test_a_finished_run_needs_nothing_else(place: Path, corpus: Corpus, tmp_path: Path):
    model = shutil.copytree(place / "gpt2", tmp_path / "gpt2")
    config = settings(place, pretrained={"model": str(model)})
    train(config, config.open_corpus(tmp_path), tmp_path / "run")
    shutil.rmtree(model)
    assert eosin.load(tmp_path / "run").eos_ids == (0,)


class Last(SelfTerminating):
    """A head of one's own, with a setting of its own."""

    def __init__(self, share: float = 0.5):
        super().__init__(share / 2)


def test_a_new_head_can_be_fine_tuned(place: Path, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(HEADS, "last", Last)
    table = settings(place).sections
    data = {"source": str(place / "text.txt"), "context": CONTEXT, "short": "drop"}
    config = FineTuningConfig.from_table({**table, "data": data,
                        "head": {"kind": "last", "share": 0.02}})  # fmt: skip
    train(config, corpus, tmp_path / "run")
    model = eosin.load(tmp_path / "run")
    assert model.model.head.epsilon == 0.01
    assert eosin.certify(model, "greedy").ends_by == 69


def test_nonsense_is_one_line(place: Path, corpus: Corpus, tmp_path: Path):
    for changes, said in [
        ({"training": {"steps": -1}}, "steps must be at least 0"),
        ({"training": {"step": 1}}, "did you mean 'steps'"),
        ({"head": {"kind": "self-terminatng"}}, "did you mean 'self-terminating'"),
        ({"head": {"epsilon": 5.0}}, "epsilon must lie strictly between 0 and 1"),
        ({"pretrained": {}}, "lacks 'model'"),
    ]:
        with pytest.raises(BadInput, match=said):
            FineTuningConfig.from_table(
                {**settings(place).sections, "data": {}, **changes}
                if "pretrained" in changes
                else _with(place, changes)
            )
    with pytest.raises(BadInput, match="there is no file or folder"):
        settings(place, pretrained={"model": str(tmp_path / "nothing")}).base.build()
    for section in ("data", "pretrained", "training", "head"):
        with pytest.raises(BadInput, match="must be a section"):
            FineTuningConfig.from_table({**settings(place).sections, section: 3})
    with pytest.raises(BadInput, match=r"data\.context is 3"):
        train(settings(place, data={"context": 3}), corpus, tmp_path / "run")
    other = shutil.copytree(place / "gpt2", tmp_path / "other")
    with pytest.raises(BadInput, match="name a text instead of a prepared corpus"):
        train(settings(place, pretrained={"model": str(other)}), corpus, tmp_path / "run")
    run = tmp_path / "begun"
    run.mkdir()
    (run / "config.toml").write_text('[pretrained]\nmodel = "x"\n')
    with pytest.raises(BadInput, match="its first epoch is not over"):
        eosin.load(run)


def _with(place: Path, changes: dict[str, dict[str, object]]) -> dict[str, object]:
    given = {section: dict(values) for section, values in settings(place).sections.items()}
    return {**given, **{section: {**given[section], **values} for section, values in changes.items()}}
