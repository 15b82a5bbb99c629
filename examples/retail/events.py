"""The events between the two services: their only common definition."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One product of an order."""

    product_id: int
    quantity: int
    cents: int
    """The price of the whole line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OrderPlaced:
    """A household has ordered a basket and was charged for it."""

    basket_id: int
    household_id: int
    number: int
    """Counts the orders of the household from 1 on, so that any reader can check their order."""
    cents: int
    lines: tuple[Line, ...]
