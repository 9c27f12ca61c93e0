"""The job document: what a submitter asks for, in YAML or JSON.

The document is checked against these bounds at the door. What needs the model's own arithmetic (do the shapes fit, how many
parameters) is in ``protocol.models.model``.
"""

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from common.untrusted_text import Told, Untrusted
from protocol.evaluation import EvaluationSpec
from protocol.ids import Digest, JobId, ShortText
from protocol.job.array import ArraySpec
from protocol.job.federated import FederatedSpec
from protocol.job.updates import UpdateName
from protocol.serving import MAX_ADAPTERS

MAX_SHARDS = 256  # Files of one model; the largest public ones have 191.
MAX_SETTINGS_BYTES = 128 << 10  # Of a model's small files; the longest chat templates have 30 KB.
MAX_PERIOD = 5000  # Inner steps of a round: leaves of a commitment, and what is lost with a replica.
HUB_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}@[0-9a-f]{40}"
"""A model of the Hugging Face Hub at one commit."""
OuterName = Literal["diloco", "averaging", "streaming", "sparseloco", "gradients", "demo", "dgc"]
"""How replicas learn from each other: ``trainer.outer``."""
SPARSE_DENSITY = 0.03  # The part of the values that sparseloco sends where the document does not say.
DGC_DENSITY = 0.001
RATE_FROM_RANDOM, RATE_OF_WEIGHTS, RATE_OF_ADAPTERS, RATE_OF_PREFERENCES = 3e-3, 2e-5, 2e-4, 2e-5
"""Learning rates where a document names none: of small models, and what is usual for fine-tuning (adapters: arXiv 2305.14314)."""
TOGETHER = frozenset({"gradients", "demo", "dgc"})
"""Methods that exchange in every inner step: no replica can go on when another one has lost a member."""


class ModelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Either ``preset`` or ``config`` (the content of a Hugging Face ``config.json``), or ``from_job``.

    ``from_job``: a job of the same submitter, whose model, config and tokenizer this one starts from: the finished model, or with
    ``from_round`` the checkpoint after so many rounds, whatever became of the job. Once the job is created, ``config`` and
    ``weights`` name them too.
    """

    preset: Annotated[str, Meta(max_length=64)] | None = None
    config: dict[str, Any] | None = None
    weights: Digest | Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=MAX_SHARDS)] | None = None
    """An uploaded ``model.safetensors`` to start from, or all its shards; ``None`` starts from seeded random weights."""
    from_job: JobId | None = None
    from_round: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    generation: dict[str, Any] | None = None
    """The content of the model's ``generation_config.json``, for the finished folder of a job that starts from weights."""
    hub: Annotated[str, Meta(max_length=400, pattern=f"^{HUB_PATTERN}$")] | None = None
    """The model of the Hugging Face Hub that the weights are of, as ``organisation/name@commit``, for the finished card."""
    license: Annotated[str, Meta(max_length=60, pattern=r"^[ -~]+$")] | None = None
    """Of that model, as the Hub names it."""

    def __post_init__(self) -> None:
        """Refuse what no such file holds."""
        _check_size(self.generation, "model.generation", "generation_config.json")
        if self.hub is not None and self.weights is None:
            raise ValueError(
                f"model.hub is {self.hub[:100]}, without the files that it stands for: "
                "`cottage submit --model organisation/name` fetches them and fills both in"
            )

    @property
    def weight_files(self) -> tuple[Digest, ...]:
        """The files to start from, none where the weights are random."""
        if self.weights is None:
            return ()
        return (self.weights,) if isinstance(self.weights, str) else self.weights


class TokenizerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``bytes`` (vocabulary 259), ``bpe`` trained on the data, or ``file``: an uploaded ``tokenizer.json``."""

    kind: Literal["bytes", "bpe", "file"] = "bpe"
    vocabulary: Annotated[int, Meta(ge=300, le=262_144)] = 2048
    file: Digest | None = None
    end: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    """The token that ends each document; ``None``: what ``protocol.job.end_tokens`` finds."""
    settings: dict[str, Any] | None = None
    """``file``: the content of its ``tokenizer_config.json``: names of special tokens, chat template."""

    def __post_init__(self) -> None:
        """Refuse what no such file holds."""
        _check_size(self.settings, "tokenizer.settings", "tokenizer_config.json")
        if self.settings is not None and self.kind != "file":
            raise ValueError(f"tokenizer.settings belong to an uploaded tokenizer, and tokenizer.kind is {self.kind}")


def _check_size(settings: dict[str, Any] | None, field: str, file: str) -> None:
    if settings is not None and (size := len(msgspec.json.encode(settings))) > MAX_SETTINGS_BYTES:
        raise ValueError(f"{field} has {size:,} bytes: a {file} has {MAX_SETTINGS_BYTES:,} at most")


DatasetFormat = Literal["auto", "text", "jsonl", "json", "csv", "parquet", "ids", "npy", "uint16", "uint32"]
"""``auto``: what the file's content says, see ``protocol.datasets.file_formats``. Packed (gzip, zstd, bzip2, xz) is the same."""
Encoding = Literal[
    "auto",
    "utf-8",
    "utf-16-le",
    "utf-16-be",
    "windows-1252",
    "iso-8859-15",
    "windows-1250",
    "iso-8859-2",
    "windows-1251",
    "koi8-r",
    "windows-1253",
    "windows-1254",
    "windows-1255",
    "windows-1256",
    "mac-roman",
    "shift_jis",
    "euc-jp",
    "euc-kr",
    "gb18030",
    "big5",
]
"""How a dataset's characters are written. ``auto``: UTF-8, or what its mark or its zeros say of UTF-16 and UTF-32."""
TOKENISED: frozenset[str] = frozenset({"ids", "npy", "uint16", "uint32"})
"""Formats of token ids, see ``trainer.data.tokens``: the job brings the tokenizer that they were made with."""


class DatasetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    artifact: Digest
    format: DatasetFormat = "auto"
    text_field: Annotated[str, Meta(min_length=1, max_length=100)] = "text"
    """Of each row: a field, a column, or one within another (``content.text``)."""
    heldout: Annotated[float, Meta(gt=0, le=0.2)] = 0.02
    faulty: Literal["refuse", "skip"] = "refuse"
    """Rows that cannot be read (not UTF-8, not JSON, without the field): refuse the dataset, or leave those rows out."""
    encoding: Encoding = "auto"
    weight: Annotated[float, Meta(gt=0, le=10)] = 1.0
    """How often each row is trained on, beside other datasets: 2 is twice, 0.5 every other one."""
    learn: Literal["answers", "all"] = "answers"
    """Of conversations: what is learnt, the assistant's turns and completions or all that is said. Of texts all is."""


class LoraSpec(Told, frozen=True, forbid_unknown_fields=True):
    """Low-rank adapters, see ``trainer.stage.lora``. ``targets``: names of linear layers such as ``q_proj``; empty: all of
    a layer's.

    ``base_model``: what the finished adapter names as its base, a repository or folder of Hugging Face.
    """

    rank: Annotated[int, Meta(ge=1, le=1024)] = 16
    alpha: Annotated[float, Meta(gt=0, le=65_536)] = 32.0
    targets: Annotated[tuple[Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,40}$")], ...], Meta(max_length=16)] = ()
    base_model: ShortText = Untrusted("")
    quantize: Literal["none", "int8", "nf4"] = "none"
    """The frozen model's matrices on nodes: ``nf4`` takes 0.52 bytes a value, ``int8`` 1.02 (``trainer.stage.quantized``)."""
    rslora: bool = False
    """Whether ``alpha`` is divided by the root of the rank, for ranks of 64 and more (arXiv 2312.03732)."""

    @property
    def scale(self) -> float:
        """What an adapter's product is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


class PreferenceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter learns which of two answers is preferred, see ``trainer.stage.objective``.

    ``beta``: how much it costs to leave what the model without the adapter says; smaller lets it go further.
    """

    beta: Annotated[float, Meta(gt=0, le=100)] = 0.1


class TrainingSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One inner step of one replica reads ``batch`` sequences of ``sequence`` tokens in ``micro_batches`` parts.

    ``round_seconds``: rounds of fixed time, in which each replica does as many steps as it can, at least one and at most
    ``inner_steps``; None: exactly ``inner_steps`` each. ``lateness``: the others go on without a replica that is later than the
    median by so many median absolute deviations; None: 4 in rounds of fixed time, and nobody is left behind in others.
    """

    tokens: Annotated[int, Meta(ge=1, le=10**13)] = 400_000
    sequence: Annotated[int, Meta(ge=8, le=131_072)] = 128
    batch: Annotated[int, Meta(ge=1, le=65_536)] = 4
    micro_batches: Annotated[int, Meta(ge=1, le=256)] = 2
    inner_steps: Annotated[int, Meta(ge=1, le=MAX_PERIOD)] = 20
    period: Literal["fixed", "growing"] = "fixed"
    """``fixed``: every round has ``inner_steps``; ``growing``: from ``shortest_period`` (a quarter of them) up to them."""
    shortest_period: Annotated[int, Meta(ge=1, le=MAX_PERIOD)] | None = None
    round_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    lateness: Annotated[float, Meta(gt=0, le=1000)] | None = None
    learning_rate: Annotated[float, Meta(gt=0, le=1)] | None = None
    """The highest. ``None``: 3e-3 from random weights, 2e-5 where a model's weights learn on, 2e-4 for adapters, and
    2e-5 for those that learn preferences."""
    warmup_steps: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    weight_decay: Annotated[float, Meta(ge=0, le=1)] = 0.1
    outer_learning_rate: Annotated[float, Meta(gt=0, le=2)] = 0.7
    outer_momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.3
    commit_every: Annotated[int, Meta(ge=1, le=64)] = 10
    """Steps between two hashes of the state; an audit runs so many again. ``benchmarks.trust.commitments`` has what it costs."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    lora: LoraSpec | None = None
    """Adapters learn and the model stays as it is; ``None``: the model learns."""
    preference: PreferenceSpec | None = None
    """Rows have a chosen and a rejected answer each; ``None``: one answer, or texts."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    decay: Literal["cosine", "wsd", "constant"] = "cosine"
    """How the learning rate falls after the warm-up, see ``protocol.job.learning_rate``."""
    decay_share: Annotated[float, Meta(gt=0, le=1)] = 0.2
    """``wsd``: the last part of the steps, in which the rate falls."""
    final_rate: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """The learning rate at the end, as a share of the peak."""
    clip_norm: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """Gradients of the whole model are scaled down to this norm; ``None`` leaves them as they are."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of matrix products; everything that is kept or sent is float32 before its codec."""
    loss_scale: Annotated[float, Meta(ge=1, le=2**24)] = 4096.0
    """``fp16``: what the loss is multiplied by for the backward pass."""
    outer: OuterName = "diloco"
    pseudo_gradient: UpdateName = "int8"
    """How updates between replicas are written: ``coarse`` takes about 1.2 bits a value, ``coarser`` 0.6."""
    density: Annotated[float, Meta(gt=0, le=0.5)] | None = None
    """Sparse methods: the part of the values that is sent; ``None``: 0.03 (``sparseloco``) or 0.001 (``dgc``)."""
    error_feedback: Annotated[float, Meta(ge=0, le=1)] | None = None
    """What a replica keeps of what it could not send, to send it later; ``None``: the method's own (0.95, or nothing)."""
    aggregation: Literal["mean", "trimmed", "clipped"] = "mean"
    """How pseudo-gradients become one, see ``trainer.outer.checks``; all but ``mean`` withstand a few bad ones of many."""
    check_updates: bool = True
    """Leave out pseudo-gradients whose norm or direction is far from the others', of three replicas or more."""
    exchange: Literal["auto", "mesh", "shards"] = "auto"
    """How contributions reach the other replicas, see ``protocol.job.sharding``. ``auto``: by shards from four replicas on."""
    fragments: Annotated[int, Meta(ge=1, le=64)] = 4
    """``streaming``: parts of the model that are exchanged in turn."""
    mixing: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """``streaming``: how much of its own parameters a replica keeps when a fragment's outer step arrives."""
    overlap: Annotated[int, Meta(ge=0, le=MAX_PERIOD)] = 0
    """``streaming``: so many steps before a round's end a replica sends its contribution, and its way hides behind them."""
    activations: Literal["auto", "int8", "int4", "aq4", "fp32"] = "int8"
    """What crosses from stage to stage, see ``trainer.stage.boundary_codec``. ``auto``: the plan chooses 8 or 4 bits for
    both ways, and
    with them ``micro_batches``, ``lookahead`` and ``recompute``, from the lines, speeds and memory that were measured."""
    sampling: Literal["random", "epochs"] = "random"
    """``epochs``: windows side by side, each once before any comes again; ``aq4`` lives on windows that come again."""
    shares: Annotated[int, Meta(ge=1, le=256)] | None = None
    """``epochs``: a run deals the windows to so many replicas; ``None``: each replica reads them all."""
    boundary_gradients: Literal["auto", "int8", "int4", "fp32"] = "auto"
    """Their gradients; fewer than four bits cost 19-67 % of loss. ``auto``: int8, or float32 beside float32 activations."""
    subspace: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    """Only this many channels cross, see ``trainer.stage.subspace``; for models that start from random weights."""
    schedule: Literal["1f1b", "zero-bubble"] = "1f1b"
    lookahead: Annotated[int, Meta(ge=0, le=64)] = 0
    """Further micro-batches in flight for each stage that follows, against the time on the link."""
    recompute: bool = False
    """Keep only each layer's input for the backward pass: less memory for a third more work."""
    memory: Literal["float32", "lean"] = "float32"
    """How a stage keeps what it trains, see ``trainer.stage.storage``. ``lean``: half the bytes and fewer, for large models;
    it computes in bf16 and recomputes each layer."""

    @property
    def recomputes(self) -> bool:
        """Whether layers run again in the backward pass."""
        return self.recompute or self.memory == "lean"

    @property
    def forward_passes(self) -> int:
        """How often a micro-batch passes a stage forward: where answers are compared, once more as the reference has it."""
        return 1 if self.preference is None else 2

    def __post_init__(self) -> None:
        """Refuse what does not learn."""
        if self.memory == "lean":
            self._check_lean()
        if self.preference is not None:
            self._check_preference()
        if self.outer == "sparseloco" and self.outer_momentum > 0:
            raise ValueError(
                f"outer: sparseloco with outer_momentum {self.outer_momentum:g} learns less than one replica alone, since what "
                "error feedback sends later is already in the momentum: set outer_momentum to 0"
            )
        if self.outer in TOGETHER and self.round_seconds is not None:
            raise ValueError(
                f"outer: {self.outer} exchanges in every step, so all replicas make the same number: leave round_seconds out"
            )
        if self.overlap and (
            self.outer != "streaming" or self.round_seconds is not None or self.overlap >= self.inner_steps
        ):
            raise ValueError(
                f"overlap {self.overlap} sends what a round contributes before it ends, so it takes outer: streaming, rounds of "
                f"fixed steps, and more than {self.overlap} of them: change those, or set overlap to 0"
            )
        if self.outer in TOGETHER and self.precision == "fp16":
            raise ValueError(
                f"outer: {self.outer} sends every step's gradients, and those of fp16 overflow at times: set precision to bf16"
            )

    def _check_preference(self) -> None:
        if self.lora is None:
            raise ValueError(
                "training.preference compares an adapter with the model that it stands beside: give training.lora, too"
            )
        if self.activations == "aq4":
            raise ValueError(
                "activations: aq4 remembers one activation of each window, and with training.preference there are two: set "
                "activations to int4 or int8"
            )

    def _check_lean(self) -> None:
        if self.precision != "bf16":
            raise ValueError(f"memory: lean computes in bf16, and precision is {self.precision}: set precision to bf16")
        if self.outer in ("demo", "dgc"):
            raise ValueError(
                f"outer: {self.outer} keeps float32 vectors of its own where memory: lean has 8-bit moments: set memory to "
                "float32, or outer to diloco"
            )
        if self.subspace is not None:
            raise ValueError(
                f"subspace {self.subspace} holds parameters in place with two float32 vectors: set memory to float32, or leave "
                "subspace out"
            )


class CrossingPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan has settled of a job that left it open with ``activations: auto``; fields as in ``TrainingSpec``."""

    activations: Literal["int8", "int4"]
    boundary_gradients: Literal["auto", "int8", "int4", "fp32"]
    micro_batches: Annotated[int, Meta(ge=1, le=256)]
    lookahead: Annotated[int, Meta(ge=0, le=64)]
    recompute: bool

    @classmethod
    def of(cls, training: TrainingSpec) -> "CrossingPlan":
        """That of a spec that leaves nothing open; raises ``msgspec.ValidationError`` where it does."""
        return msgspec.convert({name: getattr(training, name) for name in cls.__struct_fields__}, cls)

    def applied(self, training: TrainingSpec) -> TrainingSpec:
        """The spec that workers get."""
        return msgspec.structs.replace(training, **msgspec.structs.asdict(self))


class ParallelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``None`` leaves the choice to the scheduler."""

    stages: Annotated[int, Meta(ge=1, le=64)] | None = None
    replicas: Annotated[int, Meta(ge=1, le=256)] | None = None


ServedWeights = Literal["float32", "int8", "nf4"]
"""How nodes hold a model that answers: as float32, or its matrices in 8 or 4 bits (``trainer.stage.quantized``)."""


class ServedAdapter(Told, frozen=True, forbid_unknown_fields=True):
    """An adapter that answers beside the model that it was trained on.

    ``job``: whose finished model it is. Once the deployment is created, ``name`` is that job's, and ``lora`` its adapter's.
    """

    job: JobId
    name: ShortText = Untrusted("")
    lora: LoraSpec | None = None


class ServeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model answers programs on nodes instead of learning, see ``coordinator.services.serving``.

    ``replicas``: how often it is held, as often as there are nodes for up to so many times. ``stages``: nodes that hold it
    together, each some layers of it; ``None``: one where it fits, else as few as it fits. ``context``: tokens of a prompt with
    its answer; ``None``: as many as the model reads, and ``protocol.serving.LONGEST`` at most. ``idle_minutes``: without a
    request for so long its nodes are let go, until somebody asks; ``None``: they stay. ``weights``: how nodes hold the
    matrices of its layers; what is computed with them is float32. ``adapters``: of jobs that adapted exactly this model; each
    answers under a name of its own. ``draft``: a small model with the same tokenizer, the
    finished one of a job (``from_job``) or that of uploaded ``weights`` with their ``config``. ``draft_tokenizer``: the uploaded
    ``tokenizer.json`` of such weights, to see that it has the model's tokens. Where several nodes hold the model together, the
    first one has it guess what comes next, which they then look at in one pass: answers come sooner, and are the same. Once the
    deployment is created, its ``config`` is there, too.
    """

    replicas: Annotated[int, Meta(ge=1, le=64)] = 1
    context: Annotated[int, Meta(ge=64, le=131_072)] | None = None
    idle_minutes: Annotated[int, Meta(ge=1, le=10_080)] | None = None
    stages: Annotated[int, Meta(ge=1, le=16)] | None = None
    weights: ServedWeights = "float32"
    adapters: Annotated[tuple[ServedAdapter, ...], Meta(max_length=MAX_ADAPTERS)] = ()
    draft: ModelSpec | None = None
    draft_tokenizer: Digest | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Refuse an adapter that would have one name twice."""
        jobs = [one.job for one in self.adapters]
        if twice := next((job for job in jobs if jobs.count(job) > 1), None):
            raise ValueError(f"serve.adapters has job {twice} twice: name each once")
        if self.draft_tokenizer is not UNSET and (self.draft is None or self.draft.from_job is not None):
            raise ValueError("serve.draft_tokenizer is of weights in serve.draft, and there are none: leave it out")
        if self.draft is not None:
            if self.draft.from_job is None and (self.draft.weights is None or self.draft.config is None):
                ways = "name a job in serve.draft.from_job, or give weights and config of a model in serve.draft"
                raise ValueError(f"serve.draft is a model that has learnt: {ways}")
            if self.draft.from_job is None and self.draft.from_round is not None:
                raise ValueError(
                    "serve.draft.from_round is a checkpoint of a job: name the job in serve.draft.from_job"
                )
            if self.stages == 1:
                raise ValueError(
                    "serve.draft spares turns around several nodes, and serve.stages is 1: leave one of them out"
                )


class JobSpec(Told, frozen=True, forbid_unknown_fields=True):
    """One job. ``budget`` is in millionths of the token and goes into escrow; what is not spent comes back.

    It learns from ``dataset``, or from what owners have (``federated``), or answers (``serve``): with the model of
    ``model.from_job``, or with that of ``model.weights``. Or it runs a container for each of many inputs (``array``), and has no
    model.
    """

    name: Annotated[Untrusted, Meta(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]+$")]
    model: ModelSpec = ModelSpec()
    budget: Annotated[int, Meta(ge=1, le=2**63 - 1)] = msgspec.field(default_factory=int)
    """Every document says it: without it nothing is paid, and so the document is refused."""
    dataset: DatasetSpec | None = None
    tokenizer: TokenizerSpec = TokenizerSpec()
    training: TrainingSpec = TrainingSpec()
    parallel: ParallelSpec = ParallelSpec()
    deadline_hours: Annotated[float, Meta(gt=0, le=24 * 90)] = 24.0
    over_budget: Literal["refuse", "pause"] = "refuse"
    """Of a job whose price is above its budget: it is not taken, or trains as far as the budget goes, and then pauses."""
    note: ShortText = Untrusted("")
    more_datasets: Annotated[tuple[DatasetSpec, ...], Meta(max_length=15)] = ()
    """Further datasets with rows of the same kind, which are trained on, too."""
    heldout_dataset: DatasetSpec | None = None
    """What the held-out loss is of; ``None``: a part of each of the others, ``dataset.heldout``."""
    evaluation: EvaluationSpec | None = None
    """Tasks of lm-evaluation-harness to try the model with, before and after; among those that the coordinator offers."""
    serve: ServeSpec | None = None
    """The model answers; ``None``: it learns."""
    federated: FederatedSpec | None = None
    """It learns from data that stays at its owners; ``None``: from ``dataset``."""
    array: ArraySpec | None = None
    """A container runs for each of many inputs; there is no model."""

    @property
    def trains(self) -> bool:
        """Whether a model learns, in rounds; else a model answers, or containers run, and nodes are paid by periods."""
        return self.serve is None and self.array is None

    def __post_init__(self) -> None:
        """Refuse adapters and checkpoints of nothing, and jobs without anything to do."""
        super().__post_init__()
        if self.budget < 1:
            raise ValueError("budget is missing: say what the job may cost at most, in millionths of the token")
        if self.array is not None:
            _check_array(self)
        elif self.serve is not None:
            _check_served(self)
        elif self.federated is not None:
            _check_federated(self)
            tokens = _federated_tokens(self.training, self.federated)
            msgspec.structs.force_setattr(self, "training", msgspec.structs.replace(self.training, tokens=tokens))
        elif self.dataset is None:
            raise ValueError(
                "dataset is missing: say what the model learns from, or federated, if the data stays at its owners, or serve, "
                "if it is to answer"
            )
        if self.model.from_round is not None and self.model.from_job is None:
            raise ValueError("model.from_round is a checkpoint of a job: name the job in model.from_job")
        if self.training.lora is not None and self.model.weights is None and self.model.from_job is None:
            raise ValueError("training.lora adapts a model that has learnt already: give its weights in model.weights")
        if self.training.preference is not None and self.dataset is not None and self.dataset.learn == "all":
            raise ValueError("training.preference compares answers, and dataset.learn is all: set it to answers")
        if self.training.learning_rate is None:
            started = self.model.weights is not None or self.model.from_job is not None
            rate = usual_learning_rate(self.training, started)
            msgspec.structs.force_setattr(self, "training", msgspec.structs.replace(self.training, learning_rate=rate))


def _check_array(spec: JobSpec) -> None:
    """An array job has a container, and nothing of models."""
    plain = JobSpec.__struct_fields__
    kept = {"name", "budget", "deadline_hours", "note", "array", "training"}
    defaults = {one.name: one.default for one in msgspec.structs.fields(JobSpec)}
    said = [name for name in plain if name not in kept and getattr(spec, name) != defaults[name]]
    if spec.training not in UNTRAINED:
        said.append("training")
    if said:
        raise ValueError(f"array runs a container and has no model: leave {' and '.join(sorted(said))} out")


UNTRAINED = (TrainingSpec(), TrainingSpec(learning_rate=RATE_OF_WEIGHTS), TrainingSpec(learning_rate=RATE_FROM_RANDOM))
"""Training settings of a document that says nothing of them, before and after it was read once."""


def _federated_tokens(training: TrainingSpec, federated: FederatedSpec) -> int:
    """What all owners together read in all rounds."""
    steps = federated.rounds * training.inner_steps * len(federated.owners)
    return steps * training.batch * training.sequence


def _check_federated(spec: JobSpec) -> None:
    assert spec.federated is not None
    training, owners = spec.training, len(spec.federated.owners)
    if spec.dataset is not None or spec.more_datasets or spec.heldout_dataset is not None:
        raise ValueError("a federated job names no dataset: each owner's machine reads its own. Leave the datasets out")
    if spec.evaluation is not None:
        raise ValueError("tasks are not tried with the model of a federated job: leave evaluation out")
    if spec.tokenizer.kind == "bpe":
        raise ValueError(
            "tokenizer.kind bpe is made from data, which stays at its owners: set it to bytes, or to file and bring the "
            "model's tokenizer.json"
        )
    if spec.parallel.stages not in (None, 1) or spec.parallel.replicas not in (None, owners):
        raise ValueError(
            f"a federated job has one stage, the whole model, at each of its {owners} owners: leave parallel out"
        )
    if training.tokens not in (TrainingSpec().tokens, _federated_tokens(training, spec.federated)):
        raise ValueError("a federated job lasts for federated.rounds: leave training.tokens out")
    _check_federated_training(training)
    if spec.federated.sum == "secure" and training.aggregation != "mean":
        raise ValueError(
            f"aggregation: {training.aggregation} looks at single updates, and a secure sum shows none: set it to mean, or leave "
            "federated.sum out"
        )


def _check_federated_training(training: TrainingSpec) -> None:
    only = "in a federated job an update is made once a round"
    if training.outer not in ("diloco", "averaging"):
        raise ValueError(f"{only}, and outer: {training.outer} has other exchanges: set outer to diloco or averaging")
    if training.round_seconds is not None or training.period != "fixed":
        raise ValueError("rounds of a federated job have inner_steps steps each: leave round_seconds and period out")
    if training.error_feedback:
        raise ValueError(
            f"error_feedback {training.error_feedback:g} sends later what clip and noise have kept back: leave it out of a "
            "federated job"
        )
    if training.sampling == "epochs":
        raise ValueError(
            "sampling: epochs deals one dataset to all replicas, and owners have their own: set it to random"
        )
    if training.preference is not None:
        raise ValueError("federated jobs learn from texts and answers, and not from preferences: leave preference out")
    if training.memory == "lean" or training.precision == "fp16":
        raise ValueError(
            "owners' updates are made in float32: set memory to float32, and precision to fp32 or bf16, in a federated job"
        )


def _check_served(spec: JobSpec) -> None:
    if spec.model.from_job is None:
        if spec.model.weights is None or spec.model.config is None:
            ways = "name a job in model.from_job, or give weights and config of a model in model"
            raise ValueError(f"serve answers with a model that has learnt: {ways}")
        if spec.tokenizer.kind != "file" or spec.tokenizer.file is None:
            raise ValueError("serve reads and writes with the model's own tokenizer: name its file in tokenizer.file")
    if spec.dataset is not None or spec.more_datasets or spec.heldout_dataset is not None:
        raise ValueError("a model that answers (serve) learns nothing: leave the datasets out")
    if spec.federated is not None:
        raise ValueError("a job answers (serve), or it learns at owners (federated): leave one of them out")
    if spec.evaluation is not None:
        raise ValueError("tasks are tried before and after training: leave evaluation out of a job that serves")
    if spec.training not in UNTRAINED:
        raise ValueError("a model that answers (serve) learns nothing: leave training out")
    if spec.parallel != ParallelSpec():
        raise ValueError("serve has stages and replicas of its own: leave parallel out, and say serve.stages")


def datasets_of(spec: JobSpec) -> list[tuple[str, DatasetSpec]]:
    """Every dataset of a job, with its place in the document."""
    found = [] if spec.dataset is None else [("dataset", spec.dataset)]
    found += [(f"more_datasets.{number}", one) for number, one in enumerate(spec.more_datasets)]
    return found + ([] if spec.heldout_dataset is None else [("heldout_dataset", spec.heldout_dataset)])


class BesideDataset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A further dataset of a job as its file lies on a disk; ``judged``: it is held out, and the others are not."""

    path: str
    name: str
    dataset: DatasetSpec
    judged: bool


def without_settings(spec: JobSpec) -> JobSpec:
    """The document without what only the finished folder is for: a template and its like, of many kilobytes."""
    tokenizer = msgspec.structs.replace(spec.tokenizer, settings=None)
    return msgspec.structs.replace(
        spec, tokenizer=tokenizer, model=msgspec.structs.replace(spec.model, generation=None)
    )


def usual_learning_rate(training: TrainingSpec, started: bool) -> float:
    """The highest learning rate where a document names none; ``started``: from weights that have learnt already."""
    if training.preference is not None:
        return RATE_OF_PREFERENCES
    if training.lora is not None:
        return RATE_OF_ADAPTERS
    return RATE_OF_WEIGHTS if started else RATE_FROM_RANDOM


def total_steps(training: TrainingSpec, replicas: int) -> int:
    """Inner steps of each replica until the job's tokens are read, at least one."""
    per_step = training.batch * training.sequence * replicas
    return max(1, -(-training.tokens // per_step))
