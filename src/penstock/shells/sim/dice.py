"""Dice of their own for each purpose: what is drawn with one leaves all that others draw as it is."""

from __future__ import annotations

from random import Random


def dice_for(rng: Random, purpose: str = "") -> Random:
    """Of the same seed; to roll them does not move `rng`."""
    _, words, _ = rng.getstate()
    return Random(f"{purpose}{words[:8]}")
