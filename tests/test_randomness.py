"""The counter-based generator: the published test vectors, and uniformity in every direction."""

import pytest
import torch

from eosin.decoding.randomness import philox, uniforms

VECTORS = [  # from the Random123 distribution: counter, key, result
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_known_answers(counter, key, expected):
    words = philox(tuple(torch.tensor([word]) for word in counter), key)
    assert tuple(int(word) for word in words) == expected


def test_a_number_depends_on_seed_context_and_step_alone():
    contexts, steps = torch.arange(100), torch.arange(100) % 7
    numbers = uniforms(3, contexts, steps)
    order = torch.randperm(100)
    assert torch.equal(uniforms(3, contexts[order], steps[order]), numbers[order])
    assert torch.equal(uniforms(3, contexts[40:41], steps[40:41]), numbers[40:41])
    for other in (uniforms(4, contexts, steps), uniforms(3, contexts + 1, steps), uniforms(3, contexts, steps + 1)):
        assert not (other == numbers).any()


def test_large_seeds_and_indices_differ():
    row = torch.tensor([0])
    seeds = [0, 1, 2**32, 2**32 + 1, 2**64 - 1]
    assert len({float(uniforms(seed, row, row)[0, 0]) for seed in seeds}) == len(seeds)
    indices = torch.tensor([0, 2**32, 2**40])
    assert len(set(uniforms(0, indices, torch.zeros(3, dtype=torch.int64))[:, 0].tolist())) == 3


@pytest.mark.parametrize("direction", ["contexts", "steps"])
@pytest.mark.parametrize("number", [0, 1])
def test_uniform_and_uncorrelated(direction: str, number: int):
    count = 100_000
    line, fixed = torch.arange(count), torch.full((count,), 5)
    pair = (line, fixed) if direction == "contexts" else (fixed, line)
    numbers = uniforms(1, *pair)[:, number]
    assert numbers.min() >= 0
    assert numbers.max() < 1
    cells = (numbers * 64).long().bincount(minlength=64).double()
    statistic = ((cells - count / 64).square() / (count / 64)).sum()
    assert torch.special.gammaincc(torch.tensor(63 / 2), statistic / 2) > 1e-4
    serial = torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1]
    assert abs(float(serial)) < 5 / count**0.5


def test_the_two_numbers_are_uncorrelated():
    numbers = uniforms(1, torch.arange(100_000), torch.zeros(100_000, dtype=torch.int64))
    assert abs(float(torch.corrcoef(numbers.T)[0, 1])) < 5 / 100_000**0.5
