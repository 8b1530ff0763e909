"""Finite check: a model passes if it samples one token."""

import pytest

from workers.engine.finite_check import NonFiniteModel, has_finite_logits
from workers.scripted.runner import ScriptedRunner


def test_a_model_that_samples_a_token_is_finite() -> None:
    runner = ScriptedRunner()
    assert has_finite_logits(runner, 3)
    runner.reset(3)
    assert (runner._history, runner.violations) == (ScriptedRunner()._history, [])


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [
        ("float32", "damaged"),
        ("bfloat16", "damaged, or overflow in bfloat16: try --dtype float32"),
        ("float16", "damaged, or overflow in float16: try --dtype bfloat16 or float32"),
    ],
)
def test_the_refusal_names_settings_to_change(dtype: str, advice: str) -> None:
    assert str(NonFiniteModel(dtype)).endswith(f"its weights are {advice}")
