# ruff: noqa: E501  (templates are kept as they are written)
"""Chat templates in the manner of the families that people run, and conversations to render with them.

Each template uses other features of Jinja and of transformers' environment; together they use all of them.
"""

from typing import Any

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
Conversation = list[dict[str, Any]]

CONVERSATIONS: dict[str, Conversation] = {
    "user": [{"role": "user", "content": "Is Paris in France?"}],
    "system": [
        {"role": "system", "content": "  Answer yes or no.\n"},
        {"role": "user", "content": 'Is "Zürich" in <b>Italy</b> & 東京 in Japan?'},
    ],
    "turns": [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "<think>\nwell\n</think>\n\nTwo"},
        {"role": "user", "content": "Three\n\n  four "},
    ],
    "answered": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Write a poem."},
        {"role": "assistant", "content": " Roses are red. "},
    ],
    "blocks": [{"role": "user", "content": [{"type": "text", "text": "first"}, {"type": "text", "text": "second"}]}],
    "pair": [
        {"role": "system", "content": "Given a web search query, find passages"},
        {"role": "query", "content": "red planet"},
        {"role": "document", "content": "Mars is red."},
    ],
    "empty": [{"role": "user", "content": ""}],
}

TEMPLATES: dict[str, str] = {
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "default system": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n{% endif %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "trimmed headers": "{{- bos_token }}\n{%- for message in messages %}\n"
    "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + "
    "'<|eot_id|>' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n"
    "    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}\n{%- endif %}\n",
    "alternating": "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != "
    "(loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}",
    "system inside user": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] | trim %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] "
    "if loop.index0 == 0 and system_message else message['content'] %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "turn of model": "{{ bos_token }}{% for message in messages %}{% set role = 'model' if message.role == 'assistant' "
    "else message.role %}<start_of_turn>{{ role }}\n{{ message.content | trim }}<end_of_turn>\n{% endfor %}"
    "{%- if add_generation_prompt -%}<start_of_turn>model\n{%- endif -%}",
    "thoughts cut": "{%- for message in messages %}\n  {%- set content = message.content %}\n"
    "  {%- if message.role == 'assistant' and '</think>' in content %}\n"
    "    {%- set content = content.split('</think>')[-1].lstrip('\n') %}\n  {%- endif %}\n"
    "  {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}\n"
    "  {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}\n"
    "{%- endif %}",
    "last user": "{%- set ns = namespace(last=-1, seen=false) %}{%- for message in messages[::-1] %}"
    "{%- set index = (messages|length - 1) - loop.index0 %}{%- if not ns.seen and message.role == 'user' %}"
    "{%- set ns.seen = true %}{%- set ns.last = index %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}[{{ loop.index0 }}{{ '*' if loop.index0 == ns.last }}] {{ message.content }}\n"
    "{%- endfor %}",
    "breaks": "{% for message in messages %}{% if message.role == 'assistant' %}{% continue %}{% endif %}"
    "{% if loop.index > 2 %}{% break %}{% endif %}{{ message.role | upper }}: {{ message.content }}\n{% endfor %}",
    "generation tag": "{% for message in messages %}{% if message.role == 'assistant' %}<a>{% generation %}"
    "{{ message.content }}{{ eos_token }}{% endgeneration %}{% else %}<u>{{ message.content }}{% endif %}{% endfor %}",
    "macro": "{% macro turn(role, text) %}<{{ role }}>{{ text }}</{{ role }}>{% endmacro %}"
    "{% for message in messages %}{{ turn(message.role, message.content) }}\n{% endfor %}",
    "json": "{{ messages | tojson }}\n{{ messages[0] | tojson(indent=2) }}{{ {'b': 1, 'a': '<é>'} | tojson(sort_keys=true) }}",
    "content blocks": "{% for message in messages %}{{ message.role }}: {% if message.content is string %}"
    "{{ message.content }}{% else %}{% for block in message.content %}{% if block.type == 'text' %}{{ block.text }}|"
    "{% endif %}{% endfor %}{% endif %}\n{% endfor %}",
    "query and document": "<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\n<Instruct>: {{ messages | "
    "selectattr('role', 'eq', 'system') | map(attribute='content') | first | default('none') }}\n<Query>: {{ messages | "
    "selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n<Document>: {{ messages | "
    "selectattr('role', 'eq', 'document') | map(attribute='content') | first }}<|im_end|>\n",
    "filters": "{% for m in messages %}{{ m.content | string | replace('a', 'A') | length }} {{ m.role | capitalize }} "
    "{{ loop.revindex }} {{ loop.cycle('x', 'y') }} {{ m.get('name', 'none') }} {{ m.content | list | join('.') }};"
    "{% else %}nobody{% endfor %}",
    "tests": "{% for m in messages %}{{ m.content is string }}{{ m.content is iterable }}{{ m.missing is defined }}"
    "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt is sameas true }}{% endfor %}",
    "whitespace": "  {% for message in messages %}  \n    {% if true %}\n   {{ message.role }}   \n    {% endif %}\n"
    "  {%- endfor -%}  \n\n end\n\n",
    "comments": "{# a comment\n over lines #}{% for message in messages %}{# inline #}{{ message.role }}\n{% endfor %}",
    "raw": "{% raw %}{{ not a variable }}{% endraw %}{{ messages[0].role }}",
    "call block": "{% macro wrap() %}[{{ caller() }}]{% endmacro %}{% call wrap() %}{{ messages[-1].content }}{% endcall %}",
    "filter block": "{% filter upper %}{% for m in messages %}{{ m.role }} {% endfor %}{% endfilter %}",
    "set block": "{% set text %}{% for m in messages %}{{ m.role }},{% endfor %}{% endset %}{{ text | trim(',') }}",
    "with": "{% for m in messages %}{% with role = m.role, n = loop.index %}{{ n }}{{ role }}{% endwith %}{% endfor %}",
    "dict": "{% set d = dict(a=1, b=messages|length) %}{% for key, value in d.items() %}{{ key }}={{ value }} {% endfor %}"
    "{{ dict.fromkeys(['x'], 2) }}",
    "recursive": "{% for m in messages recursive %}{{ m.role }}{% if m.children %}{{ loop(m.children) }}{% endif %}{% endfor %}",
    "arithmetic": "{{ 7 // 2 }} {{ 7 % 3 }} {{ 2 ** 5 }} {{ 'ab' * 3 }} {{ '%s-%d' % ('x', 3) }} {{ '{}+{}'.format(1, 2) }} "
    "{{ (messages | length) ~ ' messages' }} {{ [1, 2] + [3] }} {{ messages[0].role[:2] }} {{ 1.5 | round | int }}",
    "previous": "{% for m in messages %}{% if loop.previtem is defined and loop.previtem.role == m.role %}again{% endif %}"
    "{% if loop.nextitem is defined %}{{ loop.nextitem.role }}{% else %}end{% endif %};{% endfor %}",
    "unsafe attribute": "{{ messages.__class__ }}|{{ ''.__class__.__mro__ }}",
    "changes a list": "{% set x = messages.append(1) %}",
    "private namespace": "{% set ns = namespace(_x=1) %}{{ ns._x }}",
    "undefined call": "{{ nothing() }}",
    "syntax error": "{% for message in messages %}{{ message.role }",
}
VARIABLES: tuple[dict[str, Any], ...] = ({}, {"add_generation_prompt": True}, {"enable_thinking": False})
