"""The front's engine process: what reaches it from outside."""

import asyncio
import os

from onepass.server.engines.process import EngineProcess, Timeouts


def test_ctrl_c_at_the_terminal_does_not_reach_an_engine_that_starts() -> None:
    """A terminal signals the front's whole group, and an engine that still imports JAX would end in a traceback."""

    async def group_of_engine() -> int:
        engine = EngineProcess({}, Timeouts(), lambda progress: None)
        running = asyncio.create_task(engine.run())
        while engine.process is None:
            await asyncio.sleep(0.01)
        group = os.getpgid(engine.process.pid)
        assert group == engine.process.pid
        await engine.stop()
        await running
        return group

    assert asyncio.run(group_of_engine()) != os.getpgid(0)
