"""Chat templates of the shapes that models in common use have, with marks around answers, and odd conversations for them."""

import random
import re
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

LLAMA3 = """{%- for m in messages %}{%- if loop.first %}{{- bos_token }}{%- endif %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}
{%- if m.role == 'assistant' %}{%- generation %}{{- m.content | trim + '<|eot_id|>' }}{%- endgeneration %}
{%- else %}{{- m.content | trim + '<|eot_id|>' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

CHATML = """{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{%- generation %}{{- m.content + '<|im_end|>\\n' }}{%- endgeneration %}
{%- else %}{{- m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

QWEN3 = """{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n' }}{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(last_query_index=messages|length - 1, looking=true) %}
{%- for m in messages[::-1] %}{%- if ns.looking and m.role == 'user' %}
{%- set ns.looking = false %}{%- set ns.last_query_index = messages|length - 1 - loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{%- set content = m.content or '' %}{%- set reasoning_content = m.reasoning_content or '' %}
{{- '<|im_start|>assistant\\n' }}
{%- generation %}
{%- if loop.index0 > ns.last_query_index %}{%- if loop.last or (not loop.last and reasoning_content) %}
{{- '<think>\\n' + reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}{%- endif %}
{{- content }}
{%- for call in m.tool_calls or [] %}{{- '\\n<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\\n' }}{%- endgeneration %}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"""

SMOLLM3 = """{{- '<|im_start|>system\\n## Metadata\\n\\nReasoning Mode: ' }}
{{- '/no_think' if enable_thinking is defined and not enable_thinking else '/think' }}
{{- '\\n\\n' + (messages[0].content if messages[0].role == 'system' else 'You are SmolLM.') + '<|im_end|>\\n' }}
{%- for m in messages %}{%- set content = m.content if m.content is string else '' %}
{%- if m.role == 'user' %}{{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}{%- generation %}
{{- content.lstrip('\\n') + '<|im_end|>\\n' }}{%- endgeneration %}
{%- elif m.role == 'tool' %}{{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

_TURNS = """{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif %}"""

GEMMA3 = (
    """{{- bos_token }}{%- set first = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}
{%- for m in (messages[1:] if first else messages) %}"""
    + _TURNS
    + """{%- if m.role == 'assistant' %}{{- '<start_of_turn>model\\n' }}
{%- generation %}{{- m.content | trim + '<end_of_turn>\\n' }}{%- endgeneration %}
{%- else %}{{- '<start_of_turn>user\\n' + (first if loop.first else '') + m.content | trim + '<end_of_turn>\\n' }}{%- endif %}
{%- endfor %}{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""
)

MISTRAL = (
    """{{- bos_token }}{%- set first = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}
{%- for m in (messages[1:] if first else messages) %}"""
    + _TURNS
    + """{%- if m.role == 'assistant' %}{%- generation %}{{- ' ' + m.content + eos_token }}{%- endgeneration %}
{%- else %}{{- '[INST] ' + (first if loop.first else '') + m.content + ' [/INST]' }}{%- endif %}{%- endfor %}"""
)

TEMPLATES = {
    "llama 3": LLAMA3,
    "qwen 3": QWEN3,
    "gemma 3": GEMMA3,
    "smollm 3": SMOLLM3,
    "mistral": MISTRAL,
    "chatml": CHATML,
}
SPECIAL = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|im_start|>",
    "<|im_end|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "[INST]",
    "[/INST]",
)
BOS, EOS = "<|begin_of_text|>", "<|im_end|>"
_WORDS = (
    *("a quick brown fox jumps over the lazy dog, and so on.\n\n  indented", "  ", "\t", "\n", "<think>", "{{ x }}"),
    *(
        "naïve café",
        "漢字かな交じり文",
        "👩‍👩‍👧‍👦🙂",
        "עברית",
        "e\u0301",
        "\u200b",
        "{% raw %}",
        "<|im_end|>",
        "[/INST]",
        "print('x')",
        "1234567",
    ),
)
TOOLS = [{"type": "function", "function": {"name": "sum", "description": "Adds é.", "parameters": {"type": "object"}}}]


def unmarked(template: str) -> str:
    """A template without marks around answers."""
    return re.sub(r"\{%-? (end)?generation -?%\}", "{%- if true %}{%- endif %}", template)


def small_tokenizer() -> Tokenizer:
    """Byte-level merges, in which templates' tokens are special; about 600 tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    made.train_from_iterator([" ".join(_WORDS), "system\nuser\nassistant\nmodel\n\n"] * 20, trainer)
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return made


def odd_conversations(count: int = 200, *, tools: bool = True) -> list[dict[str, Any]]:
    """Rows with ``messages``, each odd in another way: empty turns, markup, no system, none but it, calls, hundreds of words."""
    chance = random.Random(27)
    return [_odd(chance, index, tools=tools) for index in range(count)]


def _odd(chance: random.Random, index: int, *, tools: bool) -> dict[str, Any]:
    def said(most: int = 12) -> str:
        return " ".join(chance.choices(_WORDS, k=chance.randint(0, most)))

    messages: list[dict[str, Any]] = []
    if index % 3 == 0:
        messages.append({"role": "system", "content": said() or "Be brief."})
    calls = tools and index % 5 == 0
    for _ in range(chance.choice([1, 1, 2, 3, 7])):
        messages.append({"role": "user", "content": said(300 if index % 40 == 7 else 12)})
        if calls:
            call = {"type": "function", "function": {"name": "sum", "arguments": {"a": chance.random(), "b": said(3)}}}
            messages.append({"role": "assistant", "content": said(2), "tool_calls": [call]})
            messages += [{"role": "tool", "content": said(3)} for _ in range(chance.randint(1, 2))]
        answer = {"role": "assistant", "content": said()}
        messages.append(answer | ({"reasoning_content": "hm"} if index % 7 == 3 else {}))
    if index % 11 == 4:
        messages.append({"role": "user", "content": said()})  # Nobody answers.
    return {"messages": messages} | ({"tools": TOOLS} if calls else {})
