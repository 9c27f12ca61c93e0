"""Arithmetic on Hugging Face configs, without torch: what a job's model weighs, and whether it can exist at all.

The embedding and the head of every model trained here are separate tensors: tied, they would have to cross a link at
every step as soon as there are two stages. Where a config ties them, random weights start with a head that is a copy of the
embedding, and the finished folder says ``tie_word_embeddings: false``; weights that have learnt already keep both as they
are, and stay tied. The number of stages therefore never changes the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from protocol.job.job import LoraSpec, ModelSpec
from protocol.models import config_keys
from protocol.models.config_values import MAX_VOCABULARY, integer
from protocol.models.config_values import ModelConfigError as ModelConfigError
from protocol.models.families import ModelTensors, Sizes, in_force, measure, tensors
from protocol.models.hf_classes import CLASSES
from protocol.models.text_part import AROUND, can_join, joined, split

FAMILIES: Mapping[str, str] = {name: known.architecture for name, known in CLASSES.items()}

MAX_PARAMETERS = 10**12  # No network of home machines holds more, and products stay far from 2**63.

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny-llama": {
        "model_type": "llama",
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "max_position_embeddings": 1024,
        "vocab_size": 2048,
    },
    "small-llama": {
        "model_type": "llama",
        "hidden_size": 448,
        "intermediate_size": 1216,
        "num_hidden_layers": 8,
        "num_attention_heads": 7,
        "num_key_value_heads": 7,
        "max_position_embeddings": 2048,
        "vocab_size": 8192,
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
    },
}

STARTS_TIED = config_keys.OWN + "head_starts_tied"
"""In the config of a job: the head starts as a copy of the embedding."""
KEEPS_EMBEDDING = config_keys.OWN + "keeps_embedding"
"""In the config of a job: token embedding and head are one tensor, of which nothing learns."""
STARTS_LEARNT = config_keys.OWN + "starts_learnt"
"""In the config of a job: it starts from weights, to which the ids of special tokens belong."""
PUBLISHED = config_keys.OWN + "published"
"""In the config of a job: what the finished folder has beside, as the config brought it, and the type of its numbers."""
ENDS_WITH = config_keys.OWN + "ends_with"
"""In the config of a job: the token that ends its documents."""
DTYPES: Mapping[str, str] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Types of published weights, as configs and as safetensors name them."""
QUANTIZED_BLOCK = 64
"""Values of a frozen matrix with one scale, see ``trainer.stage.quantized``."""
QUANTIZED_BYTES: Mapping[str, float] = {"nf4": 0.516, "int8": 1.016}
"""Of a value."""
VECTORS = 13.0
"""Of a stage's length, in training, in the memory of its process."""
LEAN_PART = 1 << 22
"""Values of which a lean stage makes float32 for a moment, see ``trainer.stage.storage``."""
LEAN_LOGITS = 1 << 24
"""Logits that a lean stage computes at once."""
_FLOAT32 = 4
_DROPS_NOTHING: Mapping[str, float] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_NOT_GIVEN = config_keys.TOKEN_IDS | _DROPS_NOTHING.keys() | {"use_cache"}
"""What a resolved config has of itself; what was given is in ``PUBLISHED``."""


@dataclass(frozen=True)
class ModelShape(Sizes):
    """The arithmetic on a model's sizes. ``keeps_embedding``: token embedding and head are tied, and do not learn."""

    keeps_embedding: bool = False

    @property
    def parameters(self) -> int:
        """All scalars of its stages: token embedding and head both, also where they are tied."""
        return self.stage_parameters(0, self.layers, True, True)

    @property
    def tied_parameters(self) -> int:
        """Scalars that token embedding and head share."""
        return self.vocabulary * self.hidden * self.keeps_embedding

    @property
    def distinct_parameters(self) -> int:
        """All scalars of the model as people count them: what is tied counts once."""
        return self.parameters - self.tied_parameters

    def stage_parameters(self, first: int, last: int, is_first: bool, is_last: bool) -> int:
        """Scalars of a stage with layers ``first <= i < last``, plus embedding or head where it has them.

        Raises:
            ModelConfigError: there are no such layers.
        """
        if not 0 <= first <= last <= self.layers:
            raise ModelConfigError(
                f"layers {first} to {last} of a model with {self.layers}: choose within 0..{self.layers}"
            )
        edges = self.embedding_parameters * is_first + self.head_parameters * is_last
        return (last - first) * self.layer_parameters + edges

    def stage_learns(
        self, first: int, last: int, is_first: bool, is_last: bool, lora: LoraSpec | None
    ) -> tuple[int, int]:
        """Scalars of a stage that learn, and that are frozen: all learn but what ``keeps_embedding`` says, or adapters alone.

        Raises:
            ModelConfigError: as ``stage_parameters``.
        """
        whole = self.stage_parameters(first, last, is_first, is_last)
        if lora is not None:
            return (last - first) * lora.rank * sum(self._adapted(lora)), whole
        kept = self.tied_parameters * (is_first + is_last)
        return whole - kept, kept

    def frozen_bytes(self, layers: int, is_first: bool, is_last: bool, lora: LoraSpec | None, width: float) -> int:
        """Of what never changes in a stage, and of what making a matrix wide takes for a moment.

        Args:
            width: bytes of a value that is not quantised.
        """
        _, frozen = self.stage_learns(0, layers, is_first, is_last, lora)
        if lora is None or lora.quantize == "none":
            return int(width * frozen)
        moment = _FLOAT32 * (self.largest_matrix + 4 * LEAN_PART)
        return int(self.narrow_bytes(layers, is_first, is_last, lora.quantize, width) + moment)

    def narrow_bytes(
        self, layers: int, is_first: bool, is_last: bool, kind: Literal["int8", "nf4"], width: float = _FLOAT32
    ) -> int:
        """Of a stage whose matrices are quantised.

        Args:
            width: bytes of a value that is not quantised.
        """
        whole = self.stage_parameters(0, layers, is_first, is_last)
        edge = self.vocabulary * self.hidden * (is_first and self.hidden % QUANTIZED_BLOCK == 0)
        matrices = layers * self.matrix_parameters
        narrow = matrices * QUANTIZED_BYTES[kind] + edge * QUANTIZED_BYTES["int8"]
        return int(narrow + width * (whole - matrices - edge))

    def adapter_values(self, lora: LoraSpec | None) -> int:
        """Values that a layer's adapters keep of a token for the backward pass."""
        return 0 if lora is None else lora.rank * len(self._adapted(lora))

    def _adapted(self, lora: LoraSpec) -> list[int]:
        return [width for name, width in self.linears if not lora.targets or name in lora.targets]

    def stage_operations(self, first: int, last: int, is_last: bool, sequence: int) -> int:
        """Floating-point operations a token of forward and backward: matrix products only, attention included.

        Looking up an embedding costs nothing, the head costs as much as it weighs: cut stages by this.
        """
        attention = 12 * self.heads * self.head_dim * sequence  # Two products of [T, T] with each head, three times.
        return (last - first) * (6 * self.active_layer_parameters + attention // 2) + 6 * self.head_parameters * is_last

    def stage_memory_bytes(
        self,
        parameters: int,
        is_last: bool,
        layers: int,
        batch_tokens: int,
        sequence: int = 0,
        vectors: float = VECTORS,
    ) -> int:
        """Estimated memory of a stage in training, with ``batch_tokens`` tokens in flight.

        Thirteen vectors of what learns: parameters, gradients, two moments, which of them decay, anchor, outer momentum,
        a state that is handed over and what an optimizer's step takes for a moment; what layers keep for the backward pass
        (counted on torch's saved tensors, float32, no recomputation); and the logits. What is kept for audits is not in it.

        Args:
            sequence: tokens of a sequence, for families whose attention keeps its scores.
            vectors: how many there are, where it is not all of them.
        """
        kept = self.kept_values + self.score_values * sequence
        per_token = layers * kept + (3 * self.vocabulary if is_last else 0)
        return int(_FLOAT32 * (parameters * vectors + per_token * batch_tokens))

    def check_targets(self, lora: LoraSpec | None) -> None:
        """Refuse adapters of layers that the model has not.

        Raises:
            ModelConfigError: naming the first, and those that there are.
        """
        names = sorted(name for name, _ in self.linears)
        if lora is not None and (unknown := sorted(set(lora.targets) - set(names))):
            raise ModelConfigError(f"training.lora.targets has {unknown[0]!r}: this model has {', '.join(names)}")

    def check_sequence(self, sequence: int) -> None:
        """Refuse sequences longer than the positions that the model knows.

        Raises:
            ModelConfigError: naming both lengths.
        """
        if sequence > self.max_positions:
            raise ModelConfigError(
                f"training.sequence {sequence:,} is longer than the model's {self.max_positions:,} positions: "
                f"choose at most {self.max_positions:,}, or raise max_position_embeddings"
            )


def resolve_finished(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a finished folder's ``config.json``, whose weights are beside it; raises as ``resolve``."""
    return resolve(ModelSpec(config=dict(config), weights="0" * 64), 1)


def resolve(spec: ModelSpec, vocabulary: int) -> dict[str, Any]:
    """The config that is trained: checked key by key, vocabulary set to the tokenizer's, head untied.

    Args:
        spec: preset or config; one of them. A config that was resolved before becomes what it is.
        vocabulary: token ids that the job's tokenizer can produce.
    Returns:
        The content of ``config.json``. Its ``cottage_`` entries are for putting the finished folder together.
    Raises:
        ModelConfigError: unknown preset, neither or both given, a key that is not known to be harmless, impossible shapes, or
            weights with too small a vocabulary.
    """
    if (spec.preset is None) == (spec.config is None):
        raise ModelConfigError("model needs either a preset or a config: give exactly one of them")
    if spec.preset is not None and spec.preset not in PRESETS:
        raise ModelConfigError(f"model.preset {spec.preset!r} is unknown: choose one of {', '.join(sorted(PRESETS))}")
    given = dict(PRESETS[spec.preset]) if spec.preset is not None else dict(spec.config or {})
    given, around = split(_as_given(given))
    family = _family(given)
    if around is not None and spec.weights is None:
        raise ModelConfigError(
            f"a {around.get('model_type')} is trained from its weights only: give them, or the text_config alone"
        )
    own = given.get("vocab_size") if around is None else in_force(family, given, "vocab_size")
    if own is not None:
        given["vocab_size"] = own
        integer(given, "vocab_size", 1, MAX_VOCABULARY)
    if spec.weights is not None:
        if own is None:
            raise ModelConfigError("the config of the uploaded weights has no vocab_size: add it to config.json")
        if own < vocabulary:
            raise ModelConfigError(
                f"the uploaded weights belong to a vocabulary of {own:,}, the tokenizer has {vocabulary:,}: "
                "upload the model's own tokenizer, or one without the tokens that the model has no vectors for (added_tokens)"
            )
    else:
        given["vocab_size"] = vocabulary
    config, published = config_keys.read(family, given)
    inspect_config(config | {"model_type": family})
    floats = {key for key in config_keys.NUMBERS if isinstance(config.get(key), int)}
    config |= {key: float(config[key]) for key in floats}  # JSON writes 1.0 as 1; transformers is strict.
    config |= {"model_type": family, "architectures": [FAMILIES[family]], "dtype": "float32", "use_cache": True}
    config[STARTS_TIED] = bool(in_force(family, config, "tie_word_embeddings"))
    config[STARTS_LEARNT] = spec.weights is not None
    config[KEEPS_EMBEDDING] = config[STARTS_TIED] and config[STARTS_LEARNT]
    config["tie_word_embeddings"] = False
    if family == "gpt2":
        config |= _DROPS_NOTHING
    # Nothing is padded, and a row that stands for padding would not learn; the finished folder has the model's own ids.
    config |= dict.fromkeys(config_keys.TOKEN_IDS)
    config[PUBLISHED] = _published(given, published, config["vocab_size"])
    if around is not None:
        config[AROUND] = around
    inspect_config(config)
    return config


def _as_given(config: dict[str, Any]) -> dict[str, Any]:
    """What a config was before it was resolved: a job's document that has its model's config in it is sent again, too."""
    published, around = config.get(PUBLISHED), config.get(AROUND)
    if not isinstance(published, dict) or not (around is None or can_join(around)):
        return config
    own = {key: config[key] for key in config.keys() - _NOT_GIVEN if not key.startswith(config_keys.OWN)}
    text = own | published | {"tie_word_embeddings": bool(config.get(STARTS_TIED, False))}
    return text if around is None else joined(text, around)


def _published(given: Mapping[str, Any], kept: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    """What the finished folder has beside what was taken. Token ids that the vocabulary has not are null."""
    clear_unknown_ids(kept, config_keys.TOKEN_IDS, vocabulary)
    dtype = given.get("dtype") or given.get("torch_dtype")
    return kept | {"dtype": dtype if isinstance(dtype, str) and dtype in DTYPES else "float32"}


def clear_unknown_ids(document: dict[str, Any], names: frozenset[str], vocabulary: int) -> None:
    """Make null what stands under these names and is no token id of the vocabulary; lists keep those that are."""
    for key in names & document.keys():
        listed = isinstance(document[key], list)
        ids = document[key] if listed else [document[key]]
        known = [one for one in ids if type(one) is int and 0 <= one < vocabulary]
        if len(known) < len(ids):
            document[key] = known if listed and known else None


def inspect_config(config: Mapping[str, Any]) -> ModelShape:
    """Sizes of the model that a Hugging Face config describes of a family in ``families.FAMILY``.

    Raises:
        ModelConfigError: another ``model_type`` or architecture, missing or wrong values, shapes that cannot be.
    """
    family = _family(config)
    config_keys.check(family, config)
    shape = ModelShape(**vars(measure(family, config)), keeps_embedding=keeps_embedding(config))
    if shape.parameters > MAX_PARAMETERS:
        raise ModelConfigError(f"a model of {shape.parameters:,} parameters: at most {MAX_PARAMETERS:,} are taken")
    return shape


def keeps_embedding(config: Mapping[str, Any]) -> bool:
    """Whether token embedding and head of a job's config stay what they are: they are tied, and it starts from weights."""
    return bool(config.get(KEEPS_EMBEDDING, False))


def starts_tied(spec: ModelSpec) -> bool:
    """Whether a document names weights whose token embedding is their head."""
    family = (spec.config or {}).get("model_type")
    if spec.weights is None or spec.config is None or not isinstance(family, str) or family not in FAMILIES:
        return False
    return bool(in_force(family, spec.config, "tie_word_embeddings"))


def tensors_of(config: Mapping[str, Any]) -> ModelTensors:
    """Every tensor of the model that a config describes, with its shape; raises as ``inspect_config``."""
    inspect_config(config)
    return tensors(_family(config), config)


def _family(config: Mapping[str, Any]) -> str:
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise ModelConfigError(f"model_type {family!r} is not supported: use one of {', '.join(FAMILIES)}")
    architectures = config.get("architectures")
    if architectures is not None and architectures != [FAMILIES[family]]:
        wanted = FAMILIES[family]
        named = architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else None
        why = "only models that continue a text are trained"
        if isinstance(named, str) and named.endswith("Model") and named != wanted:
            why = "that is a model without its head, and without one it cannot continue a text"
        raise ModelConfigError(
            f"architectures {architectures!r} is not supported for {family}, {why}: use ['{wanted}']"
        )
    return family
