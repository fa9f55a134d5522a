"""YAML as people mean it: `yes`, `no`, `on`, `off` and dates are texts, as in YAML 1.2, and no key stands twice.

Reading files is `rows`; what a document of questions means is `decisions.question_format`.
"""

import re
from typing import Any

import yaml  # type: ignore[import-untyped]

from onepass.errors import RequestError

BOOLEAN, TIMESTAMP = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"


class PlainLoader(yaml.SafeLoader):
    """Takes true and false for booleans, and nothing for a date."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # as PyYAML has it
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (BOOLEAN, TIMESTAMP)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Before merged keys (`<<`) are added, which may be overridden."""
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in seen:
                raise yaml.composer.ComposerError(None, None, f"the key {key.value!r} stands twice", key.start_mark)
            seen.add(name)
        return node


PlainLoader.add_implicit_resolver(BOOLEAN, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def parse_yaml(text: str, name: str, param: str) -> Any:
    """YAML, of which JSON is a part; `name` is what errors call the text."""
    try:
        return yaml.load(text, PlainLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise RequestError("invalid_yaml", f"{name} must be YAML or JSON; {error}", param) from error
