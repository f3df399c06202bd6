"""From text to batches: what is in a sequence, which words are known, nothing lost and nothing invented."""

import json
import lzma
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import mean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from texts import real_sentences, small_corpus, write_lines

from eosin.data.batches import gather, plan_by_length, plan_shuffled
from eosin.data.corpus import Recipe, load_corpus
from eosin.data.preparation import open_corpus, prepare
from eosin.data.sources import BUNDLED, HELD_OUT, SPLITS, is_heading, open_source
from eosin.data.tokenizer import (
    BOS_ID,
    EOS,
    EOS_ID,
    PAD_ID,
    SPECIAL,
    TOKENIZATIONS,
    UNK_ID,
    Tokenizer,
    train_bpe_tokenizer,
    train_word_tokenizer,
)
from eosin.errors import BadInput

SENTENCES = real_sentences(300)
KINDS = pytest.mark.parametrize("tokens", list(TOKENIZATIONS))


@pytest.fixture(scope="module", params=list(TOKENIZATIONS))
def corpus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    return small_corpus(tmp_path_factory.mktemp("corpus"), count=300, tokenization=request.param)


# sources


def test_the_bundled_texts_are_those_that_were_published():
    sentences = {
        split: sum(1 for _ in open_source("wikitext-2-sentences").read_sentences(split, "line")) for split in SPLITS
    }
    assert sentences == {"train": 81_158, "valid": 8_784, "test": 10_190}
    original = open_source("wikitext-2")
    words = {
        split: sum(len(line.split()) for line in original.read_sentences(split, "line")) for split in ("valid", "test")
    }
    assert words == {"valid": 213_886, "test": 241_211}


def test_the_attribution_is_beside_the_text():
    attribution = (open_source(BUNDLED[0]).paths["train"].parent.parent / "ATTRIBUTION.md").read_text(encoding="utf-8")
    assert "Merity" in attribution
    assert "Attribution-ShareAlike 3.0" in attribution


@pytest.mark.parametrize("form", ["wiki.{}.tokens", "wiki.{}.raw", "wiki.{}.tokens.xz", "{}.txt", "{}.txt.xz"])
def test_short_lines_of_wikitext_are_dropped_and_sentences_are_padded(tmp_path: Path, form: str):
    lines = [" = Title = ", "", *(" ".join(f"w{i}" for i in range(n)) for n in (9, 10, 11, 30))]
    for split in SPLITS:
        path = tmp_path / form.format(split)
        text = "\n".join(lines) + "\n"
        path.write_bytes(lzma.compress(text.encode()) if form.endswith("xz") else text.encode())
    wikitext = form.startswith("wiki")
    for short in ("auto", "pad", "drop"):
        corpus = prepare(Recipe(str(tmp_path), "word", short=short), tmp_path / short)
        dropped = wikitext if short == "auto" else short == "drop"
        for split in corpus.splits.values():
            assert split.lengths.tolist() == ([1 + 1, 20 + 1] if dropped else [1, 1, 1, 1 + 1, 20 + 1])
            assert bool((split.tokens == PAD_ID).any()) is not dropped
        assert corpus.dropped == load_corpus(tmp_path / short).dropped == (3 * 3 if dropped else 0)


@KINDS
def test_sequences_with_unk_are_left_out_where_that_is_asked_for(tmp_path: Path, tokens: str):
    lines = [f"{'<unk>' if i % 3 == 0 else 'word'} of line {i}" for i in range(200)]
    text = str(write_lines(tmp_path / "text.txt", lines))
    there = Recipe(text, tokens, vocab_size=300)
    kept, dropped = (prepare(replace(there, unknown=how), tmp_path / how) for how in ("keep", "drop"))
    parts = {split: list(open_source(text).read_sentences(split, "line")) for split in SPLITS}
    without = {split: [line for line in part if "<unk>" not in line] for split, part in parts.items()}
    assert {split: len(part) for split, part in kept.splits.items()} == {s: len(p) for s, p in parts.items()}
    assert {split: len(part) for split, part in dropped.splits.items()} == {s: len(p) for s, p in without.items()}
    assert kept.dropped == 0
    assert dropped.dropped == sum(len(parts[split]) - len(without[split]) for split in SPLITS)
    # the vocabulary is that of the sentences that are left
    alone = [write_lines(tmp_path / f"{split}.txt", without[split]) for split in SPLITS]
    same = prepare(Recipe(str(alone[0]), tokens, 300, valid=str(alone[1]), test=str(alone[2])), tmp_path / "alone")
    assert same.digest == dropped.digest
    assert load_corpus(tmp_path / "drop").recipe.unknown == "drop"


def test_a_word_that_only_contains_unk_is_kept(tmp_path: Path):
    text = str(write_lines(tmp_path / "text.txt", ["a <unk>ish word", "two<unk> words", "no word"] * 20))
    assert prepare(Recipe(text, "word", unknown="drop"), tmp_path / "corpus").dropped == 0


def test_a_text_of_which_nothing_is_left_says_why(tmp_path: Path):
    text = str(write_lines(tmp_path / "text.txt", ["an <unk> word"] * 100))
    with pytest.raises(BadInput, match=r"90 sequences contain <unk> and were dropped.*--unknown keep"):
        prepare(Recipe(text, "word", unknown="drop"), tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()


def test_sentences_of_one_file_are_held_out(tmp_path: Path):
    text = write_lines(tmp_path / "text.txt", [f"sentence number {i}" for i in range(100)])
    source = open_source(str(text))
    parts = {split: list(source.read_sentences(split, "line")) for split in SPLITS}
    assert [len(parts[split]) for split in SPLITS] == [90, 5, 5]
    assert sorted(line for lines in parts.values() for line in lines) == sorted(
        f"sentence number {i}" for i in range(100)
    )
    assert parts["test"][0] == f"sentence number {HELD_OUT - 1}"


def test_white_space_of_any_kind_parts_words(tmp_path: Path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffone\ttwo\u00a0 three\r\n\r\n   \n four \n".encode())
    source = open_source(str(path), valid=str(path), test=str(path))
    assert list(source.read_sentences("train", "line")) == ["one two three", "four"]


def test_the_sentencizer_splits_at_full_stops(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("One is here. Two is there! Is three?\nFour is alone.\n", encoding="utf-8")
    source = open_source(str(text), str(text), str(text))
    found = list(source.read_sentences("train", "sentencizer"))
    assert found == ["One is here.", "Two is there!", "Is three?", "Four is alone."]


def test_a_wrapped_text_is_joined_to_paragraphs(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("One is\nhere. Two is\n there!\n\n\nThree has\nno end\n\nFour. ", encoding="utf-8")
    found = list(open_source(str(text), str(text), str(text)).read_sentences("train", "sentencizer"))
    assert found == ["One is here.", "Two is there!", "Three has no end", "Four."]


def test_a_very_long_line_and_a_model_without_sentences(tmp_path: Path):
    long = write_lines(tmp_path / "long.txt", ["word . " * 200_000])
    assert (
        sum(1 for _ in open_source(str(long), str(long), str(long)).read_sentences("train", "sentencizer")) == 200_000
    )
    spacy = pytest.importorskip("spacy")
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(BadInput, match="spaCy cannot find sentences"):
        list(open_source(str(long), str(long), str(long)).read_sentences("train", str(tmp_path / "blank")))


def test_headings_of_wikitext_are_no_sentences():
    source = open_source("wikitext-2")
    assert any(is_heading(line) for line in source.read_sentences("valid", "line"))
    found = list(source.read_sentences("valid", "sentencizer"))
    assert not any(is_heading(line) for line in found)
    assert 7_000 < len(found) < 9_000  # the paper's own split has 8,464


# tokenization


@KINDS
def test_decoding_gives_the_text_back(tokens: str):
    tokenizer = TOKENIZATIONS[tokens](SENTENCES, 0)
    for sentence, ids in zip(SENTENCES, tokenizer.encode(SENTENCES), strict=True):
        assert tokenizer.decode(ids) == sentence


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_bpe_can_write_anything(text: str):
    text = " ".join(text.split())
    if any(special in text for special in SPECIAL):
        return
    tokenizer = BPE_OF_SENTENCES
    (ids,) = tokenizer.encode([text])
    assert tokenizer.decode(ids) == text
    assert UNK_ID not in ids


BPE_OF_SENTENCES = train_bpe_tokenizer(SENTENCES, 400)


@KINDS
def test_special_tokens_are_the_first_four(tokens: str):
    tokenizer = TOKENIZATIONS[tokens](SENTENCES, 0)
    assert [tokenizer.inner.id_to_token(i) for i in range(4)] == list(SPECIAL)
    ids = next(iter(tokenizer.encode(["the <unk> of"])))
    assert ids.count(UNK_ID) == 1
    assert tokenizer.decode([BOS_ID, *ids, EOS_ID]) == "<bos> the <unk> of <eos>"


def test_words_are_kept_by_frequency():
    tokenizer = train_word_tokenizer(["b a c a", "b a d"], vocab_size=len(SPECIAL) + 2)
    assert tokenizer.vocab_size == len(SPECIAL) + 2
    (ids,) = tokenizer.encode(["a b c d e"])
    assert ids == [4, 5, UNK_ID, UNK_ID, UNK_ID]


def test_the_word_vocabulary_is_that_of_train_and_valid(tmp_path: Path):
    files = [write_lines(tmp_path / f"{split}.txt", [f"both {split}"] * 3) for split in SPLITS]
    corpus = prepare(Recipe(str(files[0]), "word", valid=str(files[1]), test=str(files[2])), tmp_path / "out")
    assert corpus.tokenizer.vocab_size == len(SPECIAL) + 3
    assert (corpus.splits["test"].tokens == UNK_ID).sum() == 3
    assert not (corpus.splits["valid"].tokens == UNK_ID).any()


def test_bpe_learns_from_train_only(tmp_path: Path):
    train = write_lines(tmp_path / "train.txt", ["a b"] * 9)
    other = write_lines(tmp_path / "other.txt", ["abababab abababab"] * 9)
    corpus = prepare(Recipe(str(train), "bpe", valid=str(other), test=str(other)), tmp_path / "out")
    alone = train_bpe_tokenizer(["a b"] * 9, 0)
    assert corpus.tokenizer.to_json() == alone.to_json()


@pytest.mark.parametrize("size", [260, 300, 777])
def test_bpe_has_the_size_that_was_asked_for(size: int):
    assert train_bpe_tokenizer(SENTENCES, size).vocab_size == size


def test_a_tokenizer_is_the_same_in_every_process(tmp_path: Path):
    write_lines(tmp_path / "text.txt", SENTENCES)
    script = (
        "from pathlib import Path; from eosin.data.corpus import Recipe; from eosin.data.preparation import prepare;"
        "[prepare(Recipe('text.txt', t), Path(str(i) + t)) for t in ('word', 'bpe') for i in range(2)]"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        target = tmp_path / seed
        target.mkdir()
        write_lines(target / "text.txt", SENTENCES)
        subprocess.run([sys.executable, "-c", script], cwd=target, env=environment, check=True)
    for tokens in TOKENIZATIONS:
        made = {(tmp_path / s / f"{i}{tokens}" / "tokenizer.json").read_bytes() for s in "12" for i in range(2)}
        assert len(made) == 1


# corpora


def test_a_sequence_is_a_context_and_its_continuation(corpus):
    k = corpus.recipe.context
    for example in corpus.train:
        words = torch.cat([example.prefix[1:], example.continuation[:-1]])
        padding = int((words == PAD_ID).sum())
        assert example.prefix[0] == BOS_ID
        assert len(example.prefix) == k + 1
        assert example.continuation[-1] == EOS_ID
        assert (words[:padding] == PAD_ID).all()
        assert not padding or len(words) == k
        assert not ((words == BOS_ID) | (words == EOS_ID)).any()


def test_all_sentences_are_there_in_order(corpus):
    text = [
        corpus.tokenizer.decode([*example.prefix[1:].tolist(), *example.continuation[:-1].tolist()])
        .replace("<pad> ", "")
        .strip()
        for example in corpus.train
    ]
    assert text == [sentence for i, sentence in enumerate(SENTENCES) if i % HELD_OUT < HELD_OUT - 2]


def test_a_corpus_is_the_same_when_loaded(corpus, tmp_path: Path):
    again = prepare(corpus.recipe, tmp_path / "again")
    loaded = load_corpus(tmp_path / "again")
    assert again.digest == loaded.digest == corpus.digest
    assert loaded.recipe == corpus.recipe
    assert loaded.tokenizer.to_json() == corpus.tokenizer.to_json() == Tokenizer.load(tmp_path / "again").to_json()
    for split in SPLITS:
        assert torch.equal(loaded.splits[split].tokens, corpus.splits[split].tokens)
    assert prepare(corpus.recipe, tmp_path / "again").digest == corpus.digest
    assert open_corpus(Recipe(source=str(tmp_path / "again"))).digest == corpus.digest


def test_statistics_count_words(tmp_path: Path):
    lengths = [3, 25, 4, 10, 11] * 8
    lines = [" ".join(f"w{i}" for i in range(length)) for length in lengths]
    write_lines(tmp_path / "text.txt", lines)
    corpus = prepare(Recipe(str(tmp_path / "text.txt"), "word"), tmp_path / "out")
    kept = [length for i, length in enumerate(lengths) if i % HELD_OUT < HELD_OUT - 2]
    statistics = corpus.statistics
    assert (statistics["train"], statistics["valid"], statistics["test"]) == (36, 2, 2)
    assert statistics["vocabulary"] == len(SPECIAL) + 25
    assert statistics["average_length"] == pytest.approx(sum(kept) / len(kept))
    assert statistics["longest"] == 25


def test_contexts(corpus):
    for split in SPLITS:
        prefixes = corpus.take_contexts(split)
        assert torch.equal(prefixes, torch.stack([example.prefix for example in corpus.splits[split]]))
    assert len(corpus.take_contexts("train", 7)) == 7


def test_random_contexts_are_uniform_over_words(corpus):
    prefixes = corpus.take_contexts("random", 4_000, seed=3)
    assert (prefixes[:, 0] == BOS_ID).all()
    words = prefixes[:, 1:].flatten()
    assert words.min() >= len(SPECIAL)
    counts = words.bincount(minlength=corpus.tokenizer.vocab_size)[len(SPECIAL) :].double()
    expected = len(words) / len(counts)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - len(counts)) < 5 * (2 * len(counts)) ** 0.5
    assert torch.equal(prefixes, corpus.take_contexts("random", 4_000, seed=3))
    assert not torch.equal(prefixes, corpus.take_contexts("random", 4_000, seed=4))


# batches


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=400), size=st.integers(1, 33), seed=st.integers(0, 9))
def test_batches_are_a_partition(lengths: list[int], size: int, seed: int):
    tensor = torch.tensor(lengths)
    limited = plan_shuffled(tensor, size, seed, tokens=100)
    for plan in (plan_shuffled(tensor, size, seed), plan_by_length(tensor, size), limited):
        assert sorted(row for batch in plan for row in batch.tolist()) == list(range(len(lengths)))
        assert max(map(len, plan)) <= size
    for plan in (plan_shuffled(tensor, size, seed), plan_by_length(tensor, size)):
        assert len(plan) == -(-len(lengths) // size)
    assert all(len(batch) * max(lengths[row] for row in batch.tolist()) <= 100 for batch in limited)


@pytest.mark.parametrize("tokens", [None, 1024])
def test_batches_are_random(tokens: int | None):
    lengths = load_lengths()
    plan, again, other = (plan_shuffled(lengths, 32, seed, tokens) for seed in (0, 0, 1))
    assert [batch.tolist() for batch in plan] == [batch.tolist() for batch in again]
    assert {tuple(batch.tolist()) for batch in plan if len(batch) > 2}.isdisjoint(tuple(b.tolist()) for b in other)
    # long and short batches come mixed
    first = torch.cat(plan[: len(plan) // 2])
    assert abs(float(lengths[first].double().mean() - lengths.double().mean())) < 2.0


def test_every_token_counts_the_same():
    """The loss is a mean over the tokens of a batch; the share of eos in it must be that of the text."""
    lengths = load_lengths()
    shares = [len(batch) / int(lengths[batch].sum()) for batch in plan_shuffled(lengths, 32, seed=0)]
    assert mean(shares) == pytest.approx(len(lengths) / int(lengths.sum()), rel=0.05)


def test_batches_of_limited_tokens_are_hardly_padded():
    lengths = load_lengths()
    plan = plan_shuffled(lengths, 64, 0, tokens=1024)
    places = [len(batch) * int(lengths[batch].max()) for batch in plan]
    assert sum(places) / int(lengths.sum()) < 1.1


def load_lengths() -> torch.Tensor:
    lines = real_sentences(20_000, "train")
    return torch.tensor([max(1, len(line.split()) - 9) for line in lines])


def test_gathered_batches_are_the_examples(corpus):
    split = corpus.train
    for rows in plan_shuffled(split.lengths, 7, seed=2):
        batch = gather(split, rows)
        assert batch.tokens == int(split.lengths[rows].sum())
        for row, index in enumerate(rows.tolist()):
            example = split[index]
            assert torch.equal(batch.prefix[row], example.prefix)
            assert torch.equal(batch.continuation[row][batch.wanted[row]], example.continuation)
            assert (batch.continuation[row][~batch.wanted[row]] == EOS_ID).all()
            assert batch.wanted[row].sum() == len(example.continuation)


# bad input


def bad(tmp_path: Path, lines: list[str] | bytes, **settings: object) -> str:
    path = tmp_path / "bad.txt"
    path.write_bytes(lines if isinstance(lines, bytes) else "\n".join(lines).encode())
    with pytest.raises(BadInput) as error:
        prepare(Recipe(**{"source": str(path), "tokenization": "word", **settings}), tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["bad.txt"]
    assert "\n" not in str(error.value)
    return str(error.value)


@KINDS
def test_a_folder_that_is_empty_may_be_filled_and_another_may_not(tmp_path: Path, tokens: str):
    text = str(write_lines(tmp_path / "text.txt", SENTENCES[:60]))
    (tmp_path / "empty").mkdir()
    prepare(Recipe(text, tokens), tmp_path / "empty")
    load_corpus(tmp_path / "empty")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a").touch()
    with pytest.raises(BadInput, match="exists and is not a prepared corpus"):
        prepare(Recipe(text, tokens), tmp_path / "letters")


def test_the_same_text_by_another_path_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "text.txt", SENTENCES[:60])
    first = prepare(Recipe("text.txt"), Path("out"))
    assert prepare(Recipe(str(tmp_path / "text.txt")), Path("out")).digest == first.digest


def test_the_longest_sentence_is_counted_without_padding(tmp_path: Path):
    text = str(write_lines(tmp_path / "text.txt", ["a b", "a b c"] * 30))
    assert prepare(Recipe(text, "word"), tmp_path / "out").statistics["longest"] == 3


@KINDS
@pytest.mark.parametrize("empty", [b"", b"\n\n  \n"])
def test_an_empty_text(tmp_path: Path, tokens: str, empty: bytes):
    assert "there is no sentence for train" in bad(tmp_path, empty, tokenization=tokens)


@KINDS
def test_too_short_to_hold_sentences_out(tmp_path: Path, tokens: str):
    assert "valid got none" in bad(tmp_path, ["one sentence"] * (HELD_OUT - 2), tokenization=tokens)


@KINDS
def test_not_utf8(tmp_path: Path, tokens: str):
    """The line is named, and a replacement character in an earlier one is text."""
    lines = [*["fine \ufffd\n".encode()] * 29, "gr\u00fc\u00dfe\n".encode("latin-1"), b"fine\n"]
    assert "is not UTF-8 text: line 30," in bad(tmp_path, b"".join(lines), tokenization=tokens)


@pytest.mark.parametrize("name", ["text.jsonl", "text.txt", "text.jsonl.xz"])
@pytest.mark.parametrize("by", ["line", "sentencizer"])
def test_json_lines_are_the_texts_in_them(name: str, by: str, tmp_path: Path):
    """By the name, or because the first line is an object: the corpus is that of the texts alone."""
    texts = [" ".join(sentence.split()) for sentence in SENTENCES[:60]]
    separate = "\n" if by == "line" else "\n\n"
    (tmp_path / "plain.txt").write_text(separate.join(texts), encoding="utf-8")
    lines = [json.dumps({"id": n, "text": text.replace(" ", "\n", 1)}) for n, text in enumerate(texts)]
    encoded = "\n\n".join(lines).encode()
    (tmp_path / name).write_bytes(lzma.compress(encoded) if name.endswith(".xz") else encoded)
    found, expected = (
        [sentence for split in SPLITS for sentence in open_source(str(tmp_path / each)).read_sentences(split, by)]
        for each in (name, "plain.txt")
    )
    assert found == expected


@pytest.mark.parametrize(
    ("name", "lines", "number"),
    [
        ("text.jsonl", ['{"text": "one"}', '{"body": "two"}'], 2),
        ("text.jsonl", ['{"text": "one"}', "two"], 2),
        ("text.jsonl", ["one two"], 1),
        ("text.json", ['[{"text": "one"}]'], 1),
        ("text.txt", ['{"text": "one"}', '{"text": 2}'], 2),
        ("text.txt", ['{"messages": []}'], 1),
    ],
)
def test_json_lines_without_a_text_are_never_taken_as_text(name: str, lines: list[str], number: int, tmp_path: Path):
    path = write_lines(tmp_path / name, lines)
    with pytest.raises(BadInput, match=f"line {number} of .*{re.escape(name)} is not a JSON object with a text"):
        list(open_source(str(path)).read_sentences("train", "line"))


@KINDS
@pytest.mark.parametrize("word", ["<eos>", "<pad>", "<bos>", "end<eos>end"])
def test_a_special_token_in_the_text(tmp_path: Path, tokens: str, word: str):
    said = bad(tmp_path, [*SENTENCES[:60], "", f"here is {word} now"], tokenization=tokens)
    assert "line 62 of" in said
    assert f"here is {word} now" in said
    assert "which is a special token" in said


def test_special_words_that_are_no_tokens_are_words(tmp_path: Path):
    write_lines(tmp_path / "text.txt", ["<EOS> < eos > eos"] * 40)
    corpus = prepare(Recipe(str(tmp_path / "text.txt"), "word"), tmp_path / "out")
    assert EOS not in corpus.tokenizer.decode(corpus.train[0].prefix.tolist())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"tokenization": "word", "vocab_size": 4}, "vocab_size must exceed the 4 special tokens, got 4"),
        ({"tokenization": "word", "vocab_size": 1}, "vocab_size must exceed the 4 special tokens, got 1"),
        ({"tokenization": "bpe", "vocab_size": 100}, "vocab_size must be at least 260 for BPE"),
        ({"short": "drop", "context": 400}, "no sequence for train"),
        ({"sentences_by": "no_such_model"}, "an installed spaCy model, got 'no_such_model'"),
        ({"source": "nowhere.txt"}, "there is no text 'nowhere.txt'"),
        ({"source": "."}, "is not a folder of texts"),
        ({"valid": "bad.txt"}, "give both valid and test files"),
        ({"source": "wikitext-2", "valid": "a", "test": "b"}, "already has valid and test files"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, settings: dict, says: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert says in bad(tmp_path, SENTENCES[:100], **settings)


def test_a_broken_archive(tmp_path: Path):
    whole = lzma.compress(b"one two\n" * 100)
    for split in SPLITS:
        (tmp_path / f"{split}.txt.xz").write_bytes(whole[:-20])
    with pytest.raises(BadInput, match="is not a whole xz file"):
        prepare(Recipe(str(tmp_path), "word"), tmp_path / "out")


def test_another_corpus_in_the_folder_is_left_alone(tmp_path: Path):
    corpus = small_corpus(tmp_path, count=100)
    folder = tmp_path / "corpus-word"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(BadInput, match="holds another corpus: its context is 10, not 5"):
        prepare(Recipe(corpus.recipe.source, "word", context=5), folder)
    write_lines(tmp_path / "text.txt", real_sentences(101))
    with pytest.raises(BadInput, match="the text has changed"):
        prepare(corpus.recipe, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_another_length_of_context_in_the_file_is_noticed(tmp_path: Path):
    small_corpus(tmp_path, count=100)
    path = tmp_path / "corpus-word" / "dataset.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("context = 10", "context = 3"), encoding="utf-8")
    with pytest.raises(BadInput, match="do not belong together"):
        load_corpus(tmp_path / "corpus-word")


@pytest.mark.parametrize("wait", [0.0, 0.02, 0.2])
def test_a_preparation_that_was_killed_is_done_again(tmp_path: Path, wait: float):
    """The child is killed when it begins to write, or a little later; nothing half made is ever taken for a corpus."""
    write_lines(tmp_path / "text.txt", SENTENCES)
    child = subprocess.Popen([sys.executable, "-m", "eosin", "prepare", "text.txt", "--out", "out"], cwd=tmp_path)
    while child.poll() is None and not list(tmp_path.glob("out*")):
        time.sleep(0.001)
    time.sleep(wait)
    child.kill()
    child.wait()
    recipe = Recipe("text.txt", "bpe")
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        corpus = prepare(recipe, Path("out"))
    finally:
        os.chdir(here)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text.txt"]
    assert corpus.digest == load_corpus(tmp_path / "out").digest


def test_two_that_prepare_at_once_both_succeed(tmp_path: Path):
    write_lines(tmp_path / "text.txt", SENTENCES)
    command = [sys.executable, "-m", "eosin", "prepare", "text.txt", "--out", "out", "--json"]
    children = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) for _ in range(3)]
    said = {child.communicate()[0] for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(said) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text.txt"]


@pytest.mark.parametrize("name", ["corpus.safetensors", "tokenizer.json", "dataset.toml"])
@pytest.mark.parametrize("damage", ["truncate", "alter", "remove"])
def test_a_damaged_corpus(tmp_path: Path, name: str, damage: str):
    small_corpus(tmp_path, count=100)
    path = tmp_path / "corpus-word" / name
    content = path.read_bytes()
    middle = len(content) - 40
    changed = {"truncate": content[: len(content) // 3], "alter": content[:middle] + b"!" + content[middle + 1 :]}
    path.unlink() if damage == "remove" else path.write_bytes(changed[damage])
    with pytest.raises((BadInput, FileNotFoundError)):
        load_corpus(tmp_path / "corpus-word")


def test_the_beginning_of_a_bundled_text(tmp_path: Path):
    whole, cut = open_source(BUNDLED[0]), open_source(f"{BUNDLED[0]}@50")
    for split, count in (("train", 50), ("valid", 5), ("test", 5)):
        assert list(cut.read_sentences(split, "line")) == list(islice(whole.read_sentences(split, "line"), count))
    assert cut.compute_digest() not in (whole.compute_digest(), open_source(f"{BUNDLED[0]}@60").compute_digest())
    corpus = prepare(Recipe(source=f"{BUNDLED[0]}@50", tokenization="word"), tmp_path / "corpus")
    assert [len(corpus.splits[split]) for split in ("train", "valid", "test")] == [50, 5, 5]
    for nonsense in ("@", "@0", "@nine", "@-20"):
        with pytest.raises(BadInput, match="a whole number from 10"):
            open_source(BUNDLED[0] + nonsense)
