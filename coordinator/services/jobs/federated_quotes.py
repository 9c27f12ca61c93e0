"""What a federated job takes: it costs nothing, since nobody can check, and so nobody is paid for, what owners do at home."""

from coordinator.domain import placement, pricing
from coordinator.services.artifacts.model_files import Model
from coordinator.services.jobs.quotes import OPENING_LAMPORTS, document_problems, impossible
from protocol.job.federated import FederatedSpec
from protocol.job.job import JobSpec
from protocol.models.model import ModelConfigError, inspect_config
from protocol.rest.api import Quote
from protocol.task import Layers


def settled(spec: JobSpec) -> JobSpec:
    """The document as owners are shown it: with what its privacy budget comes to."""
    return spec


def quote(spec: JobSpec, federated: FederatedSpec, model: Model, here: int) -> Quote:
    """Sizes and problems; ``here``: nodes that are connected, which need not be the owners'."""
    try:
        shape = inspect_config(model.config)
        shape.check_sequence(spec.training.sequence)
        shape.check_targets(spec.training.lora)
    except ModelConfigError as error:
        return impossible(str(error), here)
    owners, layers = len(federated.owners), (Layers(0, shape.layers),)
    operations = pricing.operations(shape.parameters, spec.training.tokens, spec.training.forward_passes)
    return Quote(
        operations=float(operations),
        parameters=shape.distinct_parameters,
        tokens=spec.training.tokens,
        stages=1,
        replicas=owners,
        nodes_available=here,
        rounds=federated.rounds,
        hours=0.0,
        price=0,
        price_low=0,
        price_high=0,
        memory_mb_per_stage=(placement.stage_memory(shape, spec.training, layers, 0, False) // placement.MEGABYTE,),
        limit=f"it begins once {federated.least_owners} of {owners} owners have joined with their data",
        problems=tuple(document_problems(spec)),
        fee_lamports=OPENING_LAMPORTS,
        reasons=(
            "nobody is paid: the data stays at its owners, so nobody could check the work; the budget goes back",
            *model.doubts,
        ),
    )
