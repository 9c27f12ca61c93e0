"""Odd JSON in a model's small files: each reader of the coordinator refuses it in words, or takes it; none fails otherwise."""

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.errors import CottageError, InvalidError
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.model_files import ModelFiles, read_tokens
from coordinator.web.documents import _sendable, check_plain
from protocol.asking import template_text
from protocol.codec import LARGEST_BITS, MessageError, as_packed, decode, decode_json, encode
from protocol.job.end_tokens import ending, ends_of
from protocol.job.job import JobSpec, ModelSpec, TokenizerSpec
from protocol.models import config_keys
from protocol.models.model import FAMILIES, ModelConfigError, inspect_config, resolve, starts_tied
from tests.coordinator.fakes import digest, spec
from tests.trainer.small import FAMILY_CONFIGS

ODD = (
    *("1e999", "-1e999", "1e308", "NaN", "-Infinity", "9" * 20, "9" * 400, "9" * 5_000, "-1", "1.5", "true", "null"),
    *('""', '"x"', r'"\ud800"', r'"\u0000"', "[]", "{}", "[[]]", "[{}]", "[null]", "[[1, 2], [3]]", '{"": ""}'),
    *('{"a": []}', '{"content": 1}', '{"id": true}', '{"type": []}', '{"rope_type": {}}', '{"factor": true}'),
    *('{"rope_type": "linear", "factor": 1e308}', '{"full_attention": {"rope_type": []}}', '[{"template": []}]'),
    *("[" * 200 + "]" * 200, '{"a": ' * 2_000 + "1" + "}" * 2_000, "[" * 100_000),
)
TOKENIZERS = (
    "%s",
    '{"model": %s}',
    '{"model": {"vocab": %s}}',
    '{"model": {"vocab": [%s]}}',
    '{"model": {"vocab": [[%s, 0]]}}',
    '{"model": {"vocab": {"a": %s}}}',
    '{"model": {"vocab": {"a": 0}}, "added_tokens": %s}',
    '{"model": {"vocab": {"a": 0}}, "added_tokens": [%s]}',
    '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": "x", "id": %s}]}',
    '{"model": {"vocab": {"a": 0}}, "added_tokens": [{"content": %s, "id": 5}]}',
)


def named(text: str) -> str:
    return text if len(text) < 40 else f"{text[:20]}... {len(text)}"


@pytest.mark.parametrize("odd", ODD, ids=named)
async def test_a_tokenizer_is_refused_or_has_plain_tokens(tmp_path: Path, odd: str) -> None:
    store = DiskArtifacts(tmp_path / "artifacts")
    for number, form in enumerate(TOKENIZERS):
        path = tmp_path / str(number)
        path.write_text(form % odd)
        file = await store.put_file(path)
        # Its end is a token of its own, so all of it is looked at.
        model = ModelSpec(config=FAMILY_CONFIGS["llama"] | {"eos_token_id": 5})
        document = msgspec.structs.replace(spec(), model=model, tokenizer=TokenizerSpec("file", file=file))
        try:
            table = read_tokens(path, "serve.draft")
        except InvalidError:
            with pytest.raises(InvalidError, match="no table of tokens that can be read"):
                await ModelFiles(store).of(document, None, {})
            continue
        assert {type(token) for token in table.ids} == {str}
        assert all(type(one) is int and 0 <= one < 2**32 for one in table.ids.values())
        with contextlib.suppress(ModelConfigError):  # So few tokens are no vocabulary.
            found = await ModelFiles(store).of(document, None, {})
            assert msgspec.json.encode([dict(found.config), found.end])


def test_a_table_without_tokens_and_one_of_too_many_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {"vocab": {}}}')
    with pytest.raises(InvalidError, match="no table of tokens"):
        read_tokens(path, "tokenizer")
    with path.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(InvalidError, match="at most"):
        read_tokens(path, "tokenizer")


def through_the_door(text: str, bits: int = 63) -> Any:
    """What a document may hold; None: it is refused there."""
    try:
        value = decode_json(text, Any)
        check_plain(value, bits=bits)
    except (MessageError, CottageError):
        return None
    return value


@pytest.mark.parametrize("odd", ODD, ids=named)
def test_a_config_is_refused_in_words_or_can_be_kept(odd: str) -> None:
    if (value := through_the_door(f'{{"odd": {odd}}}')) is None:
        return
    lists = (config_keys.HARMLESS, config_keys.FIXED, config_keys.SIZES, config_keys.NUMBERS, config_keys.INTEGERS)
    keys = {"model_type", "architectures", "text_config", "cottage_around", "rope_scaling", "hidden_act", "dtype"}
    for family in FAMILIES:
        plain = FAMILY_CONFIGS[family] | {"vocab_size": 300}
        for key in sorted(keys.union(*lists)):
            own = plain | {key: value[next(iter(value))]}
            for config in (own, {"model_type": "gemma3", "text_config": own}):
                model = ModelSpec(config=config, weights=digest("weights"), generation=config)
                assert starts_tied(model) in (True, False)
                assert all(type(one) is int for one in ends_of(model))
                for read in (lambda: resolve(model, 300), lambda: inspect_config(config)):  # noqa: B023
                    with contextlib.suppress(ModelConfigError):
                        assert msgspec.json.encode(read())


@pytest.mark.parametrize("odd", ODD, ids=named)
@pytest.mark.parametrize("key", ["chat_template", "eos_token", "other"])
def test_settings_are_refused_or_can_be_kept_and_sent(odd: str, key: str) -> None:
    if (value := as_packed(through_the_door(f'{{"{key}": {odd}}}', LARGEST_BITS))) is None:
        return
    settings = TokenizerSpec("file", file=digest("tokenizer"), settings=value)
    document: JobSpec = msgspec.structs.replace(spec(), tokenizer=settings)
    assert encode(document)
    assert decode_json(msgspec.json.encode(document), JobSpec) == document
    assert isinstance(template_text(value), str)
    assert ending(settings, (), {"x": 0, "y": 1}, {5: "y"}).token in ("x", None)


def test_a_tokenizer_without_a_limit_is_taken_and_can_be_sent() -> None:
    """``transformers`` writes an integer of 100 bits for none."""
    given = {"model_max_length": int(1e30), "deep": [{"a": -(2**70)}], "small": 2**62}
    document = msgspec.structs.replace(
        spec(), tokenizer=TokenizerSpec("file", file=digest("tokenizer"), settings=given)
    )
    taken = _sendable(document)
    assert taken.tokenizer.settings == given, "1e30 is the same number"
    assert decode(encode(taken), JobSpec) == taken
    beyond = msgspec.structs.replace(document.tokenizer, settings={"model_max_length": 10**400})
    with pytest.raises(InvalidError, match=r"tokenizer\.settings\.model_max_length: a number of 1329 bits"):
        _sendable(msgspec.structs.replace(document, tokenizer=beyond))
