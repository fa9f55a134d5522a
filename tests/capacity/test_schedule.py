"""Cycles are read from a program's text: loops count as often as they turn, of branches the dearest."""

import pytest

from onepass.capacity.schedule import Schedule, read_schedule

TEXT = """\
%fused (a: f32[8]) -> f32[8] {
  ROOT %add.0 = f32[8]{0} add(%a, %a), backend_config={"estimated_cycles":"999"}
}

%condition.1 (state: (s32[], f32[8])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(27), backend_config={}
  ROOT %lt.1 = pred[] compare(%count, %constant.1), direction=LT
}

%body.1 (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %fusion.1 = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused, backend_config={"estimated_cycles":"10"}
  %kernel.1 = f32[8]{0} custom-call(%x), backend_config={"cost_estimate":{"flops":"1000","transcendentals":"5"}}
}

%branch_a (b: f32[8]) -> f32[8] {
  %fusion.2 = f32[8]{0} fusion(%b), kind=kLoop, backend_config={"estimated_cycles":"3"}
}

%branch_b (c: f32[8]) -> f32[8] {
  %fusion.3 = f32[8]{0} fusion(%c), kind=kLoop, backend_config={"estimated_cycles":"40"}
}

ENTRY %main.1 (p: f32[8]) -> f32[8] {
  %fusion.4 = f32[8]{0} fusion(%p), kind=kLoop, calls=%fused, backend_config={"estimated_cycles":"500"}
  %while.1 = (s32[], f32[8]{0}) while(%tuple.1), condition=%condition.1, body=%body.1, backend_config={}
  %cond.1 = f32[8]{0} conditional(%i, %p, %p), branch_computations={%branch_a, %branch_b}, backend_config={}
}
"""


@pytest.mark.parametrize("count", ["s32", "u32"])  # ours, and the compiler's own loops
def test_loops_and_branches_are_counted(count: str) -> None:
    assert read_schedule(TEXT.replace("s32", count)) == Schedule(cycles=500 + 27 * 10 + 40, kernel_flops=27_000)


def test_a_loop_whose_turns_are_not_known_is_not_guessed() -> None:
    with pytest.raises(AssertionError, match="one constant"):
        read_schedule(TEXT.replace("constant(27)", "parameter(0)"))
