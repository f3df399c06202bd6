"""Text to token ids and back: words or byte-level BPE, as Hugging Face tokenizers in one readable file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from eosin.errors import BadInput
from eosin.storage.files import write_text

PAD, BOS, EOS, UNK = SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
"""Padding of short contexts, beginning and end of a sequence, and words that are not in the vocabulary."""
PAD_ID, BOS_ID, EOS_ID, UNK_ID = range(4)
RESERVED = re.compile("|".join(map(re.escape, (PAD, BOS, EOS))))
TOKENIZER = "tokenizer.json"
ENCODED_TOGETHER = 4096
"""Sentences that are encoded in one call."""


class Tokenizer:
    """Encodes and decodes text. The first four ids are special tokens."""

    def __init__(self, inner: tokenizers.Tokenizer):
        self.inner = inner

    @property
    def vocab_size(self) -> int:
        return self.inner.get_vocab_size()

    def encode(self, sentences: Iterable[str]) -> Iterator[list[int]]:
        sentences = iter(sentences)
        while chunk := list(islice(sentences, ENCODED_TOGETHER)):
            for encoding in self.inner.encode_batch_fast(chunk, add_special_tokens=False):
                yield encoding.ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; special tokens appear as their names."""
        text = self.inner.decode(list(ids), skip_special_tokens=False)
        # in BPE a special token includes the space before it
        return " ".join(re.sub("|".join(map(re.escape, SPECIAL)), r" \g<0> ", text).split())

    def spell(self, token: int) -> str:
        """One token as text, with its space. Bytes that are no whole character appear as in the vocabulary."""
        text = self.inner.decode([token], skip_special_tokens=False)
        return self.inner.id_to_token(token) or text if "\ufffd" in text else text

    def to_json(self) -> str:
        return self.inner.to_str(pretty=True)

    def save(self, folder: Path) -> None:
        write_text(folder / TOKENIZER, self.to_json())

    @classmethod
    def load(cls, folder: Path | str) -> Tokenizer:
        """The tokenizer in a run directory or a prepared corpus."""
        path = Path(folder) / TOKENIZER
        if not path.is_file():
            raise BadInput(f"{folder} has no {TOKENIZER}: it is neither a run nor a prepared corpus")
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises nothing more special
            raise BadInput(f"{path} is damaged and cannot be read ({error})") from error


def train_word_tokenizer(sentences: Iterable[str], vocab_size: int) -> Tokenizer:
    """Words between spaces, the most frequent first; vocab_size 0 keeps all."""
    counts = Counter(word for sentence in sentences for word in sentence.split(" "))
    counts.pop(UNK, None)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    if 0 < vocab_size <= len(SPECIAL):
        raise BadInput(f"vocab_size must exceed the {len(SPECIAL)} special tokens, got {vocab_size}")
    kept = words[: vocab_size - len(SPECIAL)] if vocab_size else words
    inner = tokenizers.Tokenizer(models.WordLevel({token: i for i, token in enumerate([*SPECIAL, *kept])}, UNK))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(inner)


def train_bpe_tokenizer(sentences: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE with a full vocabulary; vocab_size 0 is the paper's size."""
    vocab_size = vocab_size or PAPER_BPE
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(SPECIAL) + len(alphabet)
    if vocab_size < least:
        raise BadInput(
            f"vocab_size must be at least {least} for BPE ({len(alphabet)} bytes and {len(SPECIAL)} special tokens), "
            f"got {vocab_size}"
        )
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    inner.decoder = decoders.ByteLevel()
    # "<unk>" is a word in WikiText: it includes the space before it
    special = [AddedToken(token, special=True, lstrip=True) for token in SPECIAL]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(sentences, trainer)
    return Tokenizer(inner)


PAPER_BPE = 19_483
TOKENIZATIONS: dict[str, Callable[[Iterable[str], int], Tokenizer]] = {
    "word": train_word_tokenizer,
    "bpe": train_bpe_tokenizer,
}
