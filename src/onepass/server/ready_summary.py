"""What is served, in one sentence: the last line of the log before traffic, and the top of /docs."""

from dataclasses import dataclass
from typing import Any

from onepass.server.engines.service import Served

GIB = 1 << 30


@dataclass(frozen=True)
class ReadySummary:
    """The model, where it runs, and what it takes. `page` is the address of the page to try it, `docs` of the API's."""

    model: str
    dtype: str
    device: str
    weights_bytes: int
    contexts_bytes: int
    programs: int
    url: str
    page: str
    docs: str

    def sentence(self) -> str:
        memory = f"weights {self.weights_bytes / GIB:.2f} GiB, kept contexts up to {self.contexts_bytes / GIB:.2f} GiB"
        return (
            f"ready: {self.model} in {self.dtype} on {self.device}; {memory}; {self.programs} programs; "
            f"try it at {self.page}, API at {self.docs}"
        )


def ready_summary(served: Served, url: str) -> ReadySummary:
    details: dict[str, Any] = served.details
    hardware, memory = details["hardware"], details["memory"]
    parallel = details["parallel"]
    devices = parallel["tp"] * parallel["dp"]
    kind = f"{hardware['device']} ({hardware['platform']})"
    return ReadySummary(
        model=served.model,
        dtype=details["dtype"],
        device=kind if devices == 1 else f"{devices} x {kind}",
        weights_bytes=memory["weights_bytes"],
        contexts_bytes=memory["contexts_bytes"],
        programs=len(details["programs"]),
        url=url,
        page=f"{url}/",
        docs=f"{url}/docs",
    )
