"""Tokens and masks of conversations: those of the libraries that everybody trains chat models with, token by token."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.support.chat_templates import (
    BOS,
    EOS,
    MISTRAL,
    QWEN3,
    TEMPLATES,
    TOOLS,
    odd_conversations,
    small_tokenizer,
    unmarked,
)
from trainer.data.chat import ChatTemplate, Document, Learn, template_fault
from trainer.errors import DataError
from trainer.formats.conversations import talk_of
from trainer.formats.talk import ChatMessages, Pair, Talk

TALK = [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And 3?"},
    {"role": "assistant", "content": "7"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


def settings(template: Any) -> dict[str, Any]:
    return {"bos_token": {"content": BOS}, "eos_token": EOS, "chat_template": template, "model_max_length": 100}


def chat(tokenizer: Tokenizer, template: Any, learn: Learn = "answers") -> ChatTemplate:
    return ChatTemplate(tokenizer, settings(template), learn, EOS, "tokenizer.json")


def theirs(tokenizer: Tokenizer, template: str) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, chat_template=template)


def talk(row: Mapping[str, Any]) -> Talk:
    found = talk_of(row, "text", "row 1")
    assert isinstance(found, ChatMessages | Pair)
    return found


def one(template: ChatTemplate, row: Mapping[str, Any]) -> Document | DataError:
    (found,) = template.documents([talk(row)], ["row 1 of data"])
    return found


def document(template: ChatTemplate, row: Mapping[str, Any]) -> Document:
    found = one(template, row)
    assert isinstance(found, Document), found
    return found


def learnt(tokenizer: Tokenizer, found: Document) -> str:
    return str(tokenizer.decode(found.ids[found.learnt].tolist(), skip_special_tokens=False))


def expected(tokenizer: Any, row: dict[str, Any]) -> tuple[list[int], list[int]]:
    made = tokenizer.apply_chat_template(
        row["messages"], tools=row.get("tools"), return_dict=True, return_assistant_tokens_mask=True
    )
    return made["input_ids"], made["assistant_masks"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("marks", [True, False], ids=["with marks", "without"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_and_masks_are_those_of_transformers(name: str, marks: bool, tokenizer: Tokenizer) -> None:
    """A template without marks gives what the same one gives with them, or is refused; never another mask."""
    marked = TEMPLATES[name]
    ours, library = chat(tokenizer, marked if marks else unmarked(marked)), theirs(tokenizer, marked)
    if name == "qwen 3" and not marks:  # In training each turn is as it was when it was said.
        library = theirs(tokenizer, _of_each_turn(marked))
    rows = odd_conversations(tools=name in ("qwen 3", "smollm 3"))
    compared = refused = 0
    for row in rows:
        found = one(ours, row)
        if isinstance(found, DataError):
            assert found.code == "refused"
            refused += 1
            continue
        ids, mask = expected(library, row)
        assert found.ids.tolist() == ids
        assert found.learnt.tolist() == [bool(bit) for bit in mask], row
        compared += 1
    assert refused == 0
    assert compared == len(rows) == 200


def _of_each_turn(template: str) -> str:
    return template.replace("loop.index0 > ns.last_query_index", "true").replace(
        "loop.last or (not loop.last and reasoning_content)", "true"
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "original", "training"),
    [
        ("llama 3", "llama3", "llama3_training"),
        ("qwen 3", "qwen3", "qwen3_training"),
        ("gemma 3", "gemma3", "gemma3_training"),
        ("phi 3", "phi3", "phi3_training"),
        ("lfm 2", "lfm2", "lfm2_training"),
        ("cohere", "cohere", "cohere_training"),
        ("qwen 3 instruct", "qwen3_instruct_2507", "qwen3_instruct_2507_training"),
    ],
)
def test_tokens_and_masks_are_those_of_trl(name: str, original: str, training: str, tokenizer: Tokenizer) -> None:
    """The original template here; there the one that ``trl`` trains with in its place."""
    trl = pytest.importorskip("trl", reason="trl is not installed")
    folder = Path(trl.__file__).parent / "chat_templates"
    before, after = ((folder / f"{one}.jinja").read_text() for one in (original, training))
    ours, library = chat(tokenizer, before), theirs(tokenizer, after)
    for row in odd_conversations(tools=name == "qwen 3"):
        ids, mask = expected(library, row)
        found = document(ours, row)
        assert found.ids.tolist() == ids
        assert found.learnt.tolist() == [bool(bit) for bit in mask], row


def test_of_qwen_2_5_trl_learns_the_line_end_of_the_prompt_too(tokenizer: Tokenizer) -> None:
    """It counts the line end behind ``assistant``, which stands in every prompt, as the answer's. Nothing else differs."""
    trl = pytest.importorskip("trl", reason="trl is not installed")
    folder = Path(trl.__file__).parent / "chat_templates"
    ours = chat(tokenizer, (folder / "qwen2_5.jinja").read_text())
    library = theirs(tokenizer, (folder / "qwen2_5_training.jinja").read_text())
    for row in odd_conversations():
        ids, mask = expected(library, row)
        found = document(ours, row)
        assert found.ids.tolist() == ids
        more = [at for at, (bit, own) in enumerate(zip(mask, found.learnt, strict=True)) if bool(bit) != own]
        assert {tokenizer.decode([ids[at]]) for at in more} <= {"\n"}
        assert all(found.learnt[at + 1] and not found.learnt[at] for at in more)


@pytest.mark.parametrize("name", TEMPLATES)
def test_of_a_prompt_in_messages_only_what_follows_is_learnt(name: str, tokenizer: Tokenizer) -> None:
    """As ``trl`` does, with the template as it is; which counts tokens, and is off by one where prompts end in other tokens."""
    template = unmarked(TEMPLATES[name])
    library = theirs(tokenizer, template)
    found = document(chat(tokenizer, template), {"prompt": TALK[:3], "completion": TALK[3:]})
    prompt = library.apply_chat_template(TALK[:3], add_generation_prompt=True)["input_ids"]
    whole = library.apply_chat_template(TALK)["input_ids"]
    assert found.ids.tolist() == whole
    texts = [
        library.apply_chat_template(one, tokenize=False, add_generation_prompt=prompts)
        for one, prompts in ((TALK[:3], True), (TALK, False))
    ]
    assert learnt(tokenizer, found) == texts[1].removeprefix(texts[0])
    if whole[: len(prompt)] == prompt:
        assert found.learnt.tolist() == [False] * len(prompt) + [True] * (len(whole) - len(prompt))
    else:
        assert name == "llama 3", "the small tokenizer takes two line ends apart that a text follows"


def test_a_pair_ends_with_the_end_of_a_document_once(tokenizer: Tokenizer) -> None:
    plain = ChatTemplate(tokenizer, None, "answers", EOS, "tokenizer.json")
    for completion in (" four", f" four{EOS}"):
        found = document(plain, {"prompt": "2 + 2 is", "completion": completion})
        assert tokenizer.decode(found.ids.tolist(), skip_special_tokens=False) == f"2 + 2 is four{EOS}"
        assert learnt(tokenizer, found) == f" four{EOS}"
    everything = ChatTemplate(tokenizer, None, "all", EOS, "tokenizer.json")
    assert document(everything, {"prompt": "2 + 2 is", "completion": " four"}).learnt.all()


@pytest.mark.parametrize("name", TEMPLATES)
def test_all_is_learnt_where_that_is_asked_for(name: str, tokenizer: Tokenizer) -> None:
    found = document(chat(tokenizer, unmarked(TEMPLATES[name]), "all"), {"messages": TALK})
    assert found.ids.tolist() == theirs(tokenizer, TEMPLATES[name]).apply_chat_template(TALK)["input_ids"]
    assert found.learnt.all()


def test_thoughts_of_earlier_turns_stay_where_they_were_said(tokenizer: Tokenizer) -> None:
    made = chat(tokenizer, unmarked(QWEN3))
    assert made.changed
    found = document(made, {"messages": TALK})
    assert learnt(tokenizer, found) == "".join(f"<think>\n\n</think>\n\n{n}<|im_end|>\n" for n in (4, 7))
    assert not chat(tokenizer, unmarked(QWEN3), "all").changed
    assert not chat(tokenizer, QWEN3).changed


def test_a_template_that_looks_at_later_turns_is_refused_with_the_ways_out(tokenizer: Tokenizer) -> None:
    """Mistral's puts the system message before the last question, wherever that is."""
    last = (
        "{%- for m in messages if m.role != 'system' %}{%- if m.role == 'user' %}{{- '[INST] ' }}{%- if loop.last or "
    )
    last += "loop.index0 == loop.length - 2 %}{{- messages[0].content }}{%- endif %}{{- m.content + ' [/INST]' }}"
    last += "{%- else %}{{- ' ' + m.content + eos_token }}{%- endif %}{%- endfor %}"
    made, rows = chat(tokenizer, last), [{"role": "system", "content": "Be brief."}, *TALK]
    found = one(made, {"messages": rows})
    assert isinstance(found, DataError)
    assert found.code == "refused"
    assert "row 1 of data cannot be told apart: the chat template writes what stands before message" in found.detail
    assert "{% generation %}" in found.detail
    assert learnt(tokenizer, document(made, {"messages": rows[:3]})) == f" 4{EOS}"
    assert learnt(tokenizer, document(made, {"prompt": rows[:-1], "completion": rows[-1:]})) == f" 7{EOS}"
    assert document(chat(tokenizer, last, "all"), {"messages": rows}).learnt.all()


def test_an_end_behind_the_last_message_alone_is_no_hindrance(tokenizer: Tokenizer) -> None:
    """As Phi 3 has it: the end of a document where nobody is asked to go on."""
    phi = "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '[/INST]\\n' }}{% endfor %}"
    phi += "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
    found = document(chat(tokenizer, phi), {"messages": TALK})
    assert learnt(tokenizer, found) == f"4[/INST]\n7[/INST]\n{EOS}"
    first = document(chat(tokenizer, phi), {"messages": TALK[1:]})
    assert learnt(tokenizer, first) == f"4[/INST]\n7[/INST]\n{EOS}", "though nobody has asked yet"


def test_what_a_template_says_no_to_is_told_in_its_words(tokenizer: Tokenizer) -> None:
    found = one(chat(tokenizer, unmarked(MISTRAL)), {"messages": [TALK[0], TALK[0]]})
    assert isinstance(found, DataError)
    assert found.detail == (
        "row 1 of data is refused by the chat template: Conversation roles must alternate user/assistant/user/assistant/..."
    )


def test_a_conversation_without_end_is_refused_and_not_waited_for(tokenizer: Tokenizer) -> None:
    found = one(chat(tokenizer, unmarked(TEMPLATES["chatml"])), {"messages": TALK * 300})
    assert isinstance(found, DataError)
    assert (found.code, found.detail) == (
        "long-row",
        "row 1 of data has more than 1,000 messages: split the conversation",
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__ }}",
        "{% include '/etc/passwd' %}",
        "{{ messages.append(1) }}",
        "{{ undefined.something }}",
    ],
)
def test_hostile_and_broken_templates_refuse_rows_and_do_nothing_else(template: str, tokenizer: Tokenizer) -> None:
    found = one(chat(tokenizer, template), {"messages": TALK})
    if isinstance(found, DataError):
        assert found.code == "refused"
    else:
        assert not found.learnt.any() or "class" not in tokenizer.decode(found.ids.tolist())


@pytest.mark.parametrize("broken", ["\n{% for m in messages %}{{ m.content", "\n{{ messages | no_such_filter }}"])
def test_a_template_that_is_broken_is_told_once_and_not_of_each_row(broken: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(
        DataError, match=r"^the chat template of tokenizer.json is broken in line 2: .*bring the tokenizer"
    ) as told:
        one(chat(tokenizer, broken), {"messages": TALK})
    assert told.value.code == "bad-template"


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (None, ""),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", ""),
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}", ""),
        ("{{ raise_exception('begin with a system message') }}", ""),
        ([{"name": "default", "template": "x"}, {"name": "tool_use", "template": "{{ tools[0].name.first }}"}], ""),
        ("\n{% for m in messages %}{{ m.content", "is broken in line 2: "),
        ("{{ messages | no_such_filter }}", "is broken in line 1: No filter named 'no_such_filter'"),
        ([{"name": "default", "template": "x"}, {"name": "tool_use", "template": "{% if %}"}], "is broken in line 1: "),
        ("{{ messages[0].no.such }}", "cannot write a greeting: 'dict object' has no attribute 'no'"),
        ("{{ no_such_function() }}", "cannot write a greeting: 'no_such_function' is undefined"),
    ],
)
def test_a_template_with_which_nobody_can_chat_is_found_without_a_conversation(given: Any, fault: str) -> None:
    found = template_fault({"chat_template": given}, "this model")
    assert found.startswith(f"the chat template of this model {fault}" if fault else ""), found
    assert bool(found) == bool(fault), found


PART = [{"type": "text", "text": "2 + 2?"}, {"type": "text", "text": "Quickly."}]
READS_PARTS = """{% for m in messages %}{{ '<|im_start|>' + m.role }}
{%- if m.content is string %}{{ m.content }}
{%- else %}{% for one in m.content %}{{ '[' + one['text'] + ']' }}{% endfor %}{% endif %}
{%- endfor %}"""
DROPS_PARTS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + (m.content if m.content is string else '') }}{% endfor %}"
)
SPELLS_PARTS = "{% for m in messages %}{{ '<|im_start|>' + m.role }}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (READS_PARTS, "[2 + 2?][Quickly.]"),
        (DROPS_PARTS, "2 + 2?\nQuickly."),
        (SPELLS_PARTS, "2 + 2?\nQuickly."),
        (unmarked(TEMPLATES["chatml"]), "2 + 2?\nQuickly."),
        (unmarked(TEMPLATES["gemma 3"]), "2 + 2?\nQuickly."),
    ],
    ids=["reads parts", "drops what is no text", "spells what is no text", "chatml", "gemma 3"],
)
def test_parts_that_are_texts_reach_every_template(template: str, expected: str, tokenizer: Tokenizer) -> None:
    made = document(chat(tokenizer, template), {"messages": [{"role": "user", "content": PART}, TALK[1]]})
    assert expected in tokenizer.decode(made.ids.tolist(), skip_special_tokens=False)
    assert "4" in learnt(tokenizer, made)


def test_arguments_that_are_json_within_a_text_are_those_of_a_table(tokenizer: Tokenizer) -> None:
    """OpenAI's programs and files write them so, and a template that makes JSON of them would make it twice."""
    made = chat(tokenizer, unmarked(QWEN3))
    calls = [
        {"type": "function", "function": {"name": "sum", "arguments": one}} for one in ({"a": 2}, '{"a": 2}', "a is 2")
    ]
    rows = [[TALK[0], {"role": "assistant", "content": "", "tool_calls": [call]}] for call in calls]
    table, text, none = (learnt(tokenizer, document(made, {"messages": row, "tools": TOOLS})) for row in rows)
    assert text == table
    assert '"arguments": {"a": 2}' in table
    assert '"arguments": "a is 2"' in none


@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}])
@pytest.mark.parametrize("marks", [True, False], ids=["with marks", "without"])
def test_an_answer_that_is_not_to_be_learnt_is_not(marks: bool, mark: dict[str, Any], tokenizer: Tokenizer) -> None:
    template = TEMPLATES["chatml"] if marks else unmarked(TEMPLATES["chatml"])
    rows = [TALK[0], TALK[1] | mark, TALK[2], TALK[3] | {"weight": 1}]
    made = document(chat(tokenizer, template), {"messages": rows})
    assert learnt(tokenizer, made) == "7<|im_end|>\n"


def test_a_message_without_content_beside_its_calls_is_one_of_no_words(tokenizer: Tokenizer) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "sum"}}]}
    made = document(chat(tokenizer, unmarked(TEMPLATES["chatml"])), {"messages": [TALK[0], call, TALK[2], TALK[3]]})
    assert learnt(tokenizer, made) == "<|im_end|>\n7<|im_end|>\n"


def test_conversations_without_a_template_are_refused_and_pairs_are_not(tokenizer: Tokenizer) -> None:
    plain = ChatTemplate(tokenizer, {"eos_token": EOS}, "answers", EOS, "tokenizer.json")
    assert not plain.there
    with pytest.raises(DataError, match=r"has no chat template to write it with: bring the tokenizer of the model's"):
        one(plain, {"messages": TALK})
    assert document(plain, {"prompt": "a", "completion": "b"}).learnt.any()


def test_a_template_of_its_own_for_tools_is_used_where_there_are_any(tokenizer: Tokenizer) -> None:
    named = [
        {"name": "default", "template": unmarked(TEMPLATES["chatml"])},
        {"name": "tool_use", "template": unmarked(QWEN3)},
    ]
    made = chat(tokenizer, named)
    with_tools, without = (
        tokenizer.decode(document(made, row).ids.tolist(), skip_special_tokens=False)
        for row in ({"messages": TALK, "tools": TOOLS}, {"messages": TALK})
    )
    assert "# Tools" in with_tools
    assert "# Tools" not in without


def test_words_of_a_row_reach_its_template(tokenizer: Tokenizer) -> None:
    rows = ({"messages": TALK, "chat_template_kwargs": {"enable_thinking": one}} for one in (True, False))
    made = chat(tokenizer, TEMPLATES["smollm 3"])
    texts = [tokenizer.decode(document(made, row).ids.tolist(), skip_special_tokens=False) for row in rows]
    assert ["Mode: /think" in text for text in texts] == [True, False]
