"""Small tokenizers with the special tokens of those that everybody has, and what their models' files say of them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = "a quick brown fox jumps over the lazy dog; 0123456789 <s> ok </p>\n"
CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


@dataclass(frozen=True)
class Known:
    """A tokenizer by its special tokens; ``end`` ends a document, ``config`` and ``settings`` name tokens, not ids."""

    special: tuple[str, ...]
    end: str
    config: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    sentencepiece: bool = False

    def make(self) -> Tokenizer:
        """The tokenizer, of about 300 tokens."""
        if self.sentencepiece:
            made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
            made.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
            made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(split=False)])
            alphabet, first = [], [*self.special, *(f"<0x{code:02X}>" for code in range(256))]
        else:
            made = Tokenizer(models.BPE())
            made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            made.decoder = decoders.ByteLevel()
            alphabet, first = sorted(pre_tokenizers.ByteLevel.alphabet()), [*self.special]
        trainer = trainers.BpeTrainer(
            vocab_size=310, special_tokens=first, initial_alphabet=alphabet, show_progress=False
        )
        made.train_from_iterator([TEXT] * 20, trainer)
        bytes_alone = {token for token in first if token not in self.special}
        if not bytes_alone:
            return made
        return _without_added(made, bytes_alone)

    def ids(self, tokenizer: Tokenizer, named: dict[str, Any]) -> dict[str, Any]:
        """A document that names tokens, with their ids in their place."""
        return {key: _id(tokenizer, value) for key, value in named.items()}


def _without_added(tokenizer: Tokenizer, names: set[str]) -> Tokenizer:
    import json

    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] not in names]
    return Tokenizer.from_str(json.dumps(document))


def _id(tokenizer: Tokenizer, value: Any) -> Any:
    if isinstance(value, list):
        return [_id(tokenizer, one) for one in value]
    return tokenizer.token_to_id(value) if isinstance(value, str) else value


def _settings(
    kind: str, bos: str | None, eos: str, pad: str | None, unk: str | None = None, **more: Any
) -> dict[str, Any]:
    named = {"bos_token": bos, "eos_token": eos, "pad_token": pad, "unk_token": unk}
    return {"tokenizer_class": kind, "model_max_length": 4096} | named | more


_LLAMA2 = ("<unk>", "<s>", "</s>")
_LLAMA3 = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|finetune_right_pad_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
)
_GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>")
_QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>")

KNOWN: dict[str, Known] = {
    "llama 2": Known(
        _LLAMA2,
        "</s>",
        {"bos_token_id": "<s>", "eos_token_id": "</s>"},
        _settings("LlamaTokenizer", "<s>", "</s>", None, "<unk>", add_bos_token=True, legacy=False),
        sentencepiece=True,
    ),
    "llama 3": Known(
        _LLAMA3,
        "<|end_of_text|>",
        {"bos_token_id": "<|begin_of_text|>", "eos_token_id": "<|end_of_text|>"},
        _settings("PreTrainedTokenizerFast", "<|begin_of_text|>", "<|end_of_text|>", None, None),
    ),
    "llama 3 instruct": Known(
        _LLAMA3,
        "<|end_of_text|>",
        {
            "bos_token_id": "<|begin_of_text|>",
            "eos_token_id": ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
            "pad_token_id": "<|finetune_right_pad_id|>",
        },
        _settings(
            "PreTrainedTokenizerFast",
            "<|begin_of_text|>",
            "<|eot_id|>",
            "<|finetune_right_pad_id|>",
            None,
            chat_template=CHATML,
        ),
    ),
    "mistral": Known(
        (*_LLAMA2, "[INST]", "[/INST]"),
        "</s>",
        {"bos_token_id": "<s>", "eos_token_id": "</s>"},
        _settings("LlamaTokenizer", "<s>", "</s>", None, "<unk>", additional_special_tokens=[]),
        sentencepiece=True,
    ),
    "gemma 3": Known(
        _GEMMA,
        "<eos>",
        {"bos_token_id": "<bos>", "eos_token_id": ["<eos>", "<end_of_turn>"], "pad_token_id": "<pad>"},
        _settings(
            "GemmaTokenizer",
            "<bos>",
            "<eos>",
            "<pad>",
            "<unk>",
            chat_template="{{ bos_token }}{{ messages[0]['content'] }}",
        ),
        sentencepiece=True,
    ),
    "qwen 2.5": Known(
        _QWEN,
        "<|endoftext|>",
        {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|endoftext|>"},
        _settings("Qwen2Tokenizer", None, "<|endoftext|>", "<|endoftext|>", None, chat_template=CHATML),
    ),
    "qwen 2.5 instruct": Known(
        _QWEN,
        "<|endoftext|>",
        {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|im_end|>"},
        _settings(
            "Qwen2Tokenizer",
            None,
            "<|im_end|>",
            "<|endoftext|>",
            None,
            chat_template=CHATML,
            additional_special_tokens=["<|im_start|>", "<|im_end|>", "<|object_ref_start|>"],
        ),
    ),
    "gpt-2": Known(
        ("<|endoftext|>",), "<|endoftext|>", {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|endoftext|>"}
    ),
    "gpt-neox": Known(
        ("<|endoftext|>", "<|padding|>"),
        "<|endoftext|>",
        {"bos_token_id": "<|endoftext|>", "eos_token_id": "<|endoftext|>"},
        _settings("GPTNeoXTokenizer", "<|endoftext|>", "<|endoftext|>", None, "<|endoftext|>"),
    ),
}


def written(known: Known, folder: Path) -> Path:
    """The tokenizer's file."""
    folder.mkdir(parents=True, exist_ok=True)
    known.make().save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def marked(tokenizer: Tokenizer, *special: str) -> Tokenizer:
    """The tokenizer with further special tokens."""
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    return tokenizer
