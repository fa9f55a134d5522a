"""Kernels that are launched before the one ahead of them has ended (programmatic dependent launch).

    wait_for_last    until the kernel ahead has ended, and with it all before: nothing it wrote is read earlier
    let_next_begin   the next one may be launched where multiprocessors are free; it waits in turn

The next is let begin only after the last has ended. So when a kernel begins, all but the one ahead of it have, and what
they wrote can be read before waiting. Every program waits, also one without work: a kernel that ended before the one
ahead of it would let the next begin too early.
"""

# mypy: disable-error-code="no-untyped-call"

from typing import Any

from jax.experimental.pallas import mosaic_gpu as plgpu


def wait_for_last(interpret: Any) -> None:
    """Pallas's interpreter runs one kernel after another."""
    if not interpret:
        plgpu.griddepcontrol_wait()


def let_next_begin(interpret: Any) -> None:
    if not interpret:
        plgpu.griddepcontrol_launch_dependents()
