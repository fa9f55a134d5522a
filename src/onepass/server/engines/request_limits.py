"""What is asked of the engines, in tokens, and the requests that are refused before they are sent.

How much may wait and run at a time is `admission`.
"""

from typing import Any

from onepass.engine.encoding.encode import Encoded
from onepass.errors import RequestError, shown

MAX_MODES_ITEMS, MAX_SERIAL_TOKENS = 256, 65_536  # of a request that is run in every mode


def num_tokens(encoded: Encoded) -> int:
    """What the engine may have to compute: the context, the items, and every item's continuations."""
    branches = sum(len(text) for texts in encoded.continuations for text in texts)
    branches += len(encoded.items) * sum(map(len, encoded.branches))
    return len(encoded.context) + sum(map(len, encoded.items)) + branches


def check_modes(encoded: Encoded) -> None:
    """Raises RequestError for what mode serial, which computes the context for every item, is too slow for."""
    count = len(encoded.items)
    if count == 0:
        raise RequestError("missing_items", "give at least one item", "items")
    serial = num_tokens(encoded) + (count - 1) * len(encoded.context)
    if count > MAX_MODES_ITEMS or serial > MAX_SERIAL_TOKENS:
        raise RequestError(
            "modes_too_large",
            f"every mode is run for at most {MAX_MODES_ITEMS} items and {MAX_SERIAL_TOKENS:,} tokens in mode serial; "
            f"got {count:,} items and {serial:,} tokens",
            "items",
        )


def check_ttl(ttl_seconds: Any, pin: Any) -> None:
    number = isinstance(ttl_seconds, int | float) and not isinstance(ttl_seconds, bool)
    if not number or not 0 < ttl_seconds <= 1e9:
        raise RequestError(
            "invalid_ttl", f"ttl_seconds must be a number above 0; got {shown(ttl_seconds)}", "ttl_seconds"
        )
    if not isinstance(pin, bool):
        raise RequestError("invalid_pin", f"pin must be true or false; got {shown(pin)}", "pin")
