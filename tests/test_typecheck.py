"""Types and shapes are checked while these tests run: on the first calls of a function in a test, then now and then."""

import jaxtyping
import pytest
import torch
import typecheck
from jaxtyping import Float
from torch import Tensor

from eosin.logits import Factored


@jaxtyping.jaxtyped(typechecker=typecheck.checked)
def double(rows: Float[Tensor, "rows 2"]) -> Float[Tensor, "rows 2"]:
    return 2 * rows


def test_the_package_is_checked():
    with pytest.raises(jaxtyping.TypeCheckError):
        Factored(torch.zeros(3), torch.zeros(4, 2), torch.zeros(4))


def test_the_first_calls_are_checked_and_then_every_fiftieth():
    refused = []
    for number in range(1, 101):
        try:
            double(torch.zeros(1, 3))
        except jaxtyping.TypeCheckError:
            refused.append(number)
    assert refused == [*range(1, typecheck.FIRST + 1), 50, 100]
