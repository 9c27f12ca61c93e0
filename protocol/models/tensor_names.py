"""Under which names a Hugging Face file holds a model's parameters. Free of torch.

Most parameters have one name everywhere. Three things differ: files of the base model leave its prefix out, some families
changed a name, and experts are single matrices in files but one tensor a layer in memory. What is written is what the
families' own repositories hold, so that every version of transformers and other programs read it.
"""

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.models.families import FAMILY
from protocol.models.text_part import AROUND, names

_EXPERTS = re.compile(r"^(?P<head>.*)\.mlp\.experts\.(?P<kind>gate_up_proj|down_proj)$")
_ROUTER = ".mlp.gate."
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Part:
    """The tensor ``key`` of a file is ``index`` of the parameter in memory; an empty index is all of it."""

    key: str
    index: tuple[int | slice, ...] = ()

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Of the file's tensor, where the parameter is ``whole``."""
        taken = zip(self.index, whole, strict=False)
        kept = [len(range(size)[place]) for place, size in taken if isinstance(place, slice)]
        return (*kept, *whole[len(self.index) :])


def written(name: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> tuple[Part, ...]:
    """What a finished model's file has in place of parameter ``name``, as the family's repositories have it."""
    family = str(config["model_type"])
    match = _EXPERTS.match(name)
    if match is None:
        if family == "gpt_neox" and name == HEAD:
            return (Part("embed_out.weight"),)
        return (Part(name.replace(_ROUTER, ".block_sparse_moe.gate.") if family == "mixtral" else name),)
    head = f"{match['head']}.{'block_sparse_moe' if family == 'mixtral' else 'mlp'}.experts"
    gate, up, down = ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    if match["kind"] == "down_proj":
        return tuple(Part(f"{head}.{expert}.{down}.weight", (expert,)) for expert in range(shape[0]))
    half = shape[1] // 2
    return tuple(
        Part(f"{head}.{expert}.{which}.weight", (expert, rows))
        for expert in range(shape[0])
        for which, rows in ((gate, slice(half)), (up, slice(half, None)))
    )


def _within(name: str, shape: tuple[int, ...], config: Mapping[str, Any], tied: bool) -> Iterator[tuple[Part, ...]]:
    """The same in files of a model that sees or hears, too."""
    found = [(Part(name),), written(name, shape, config)]
    if name == HEAD and tied:
        found.append((Part(FAMILY[str(config["model_type"])].embedding),))
    for parts in found:
        for keys in zip(*(names(part.key) for part in parts), strict=True):
            yield tuple(Part(key, part.index) for key, part in zip(keys, parts, strict=True))


def ways(name: str, shape: tuple[int, ...], config: Mapping[str, Any], tied: bool) -> Iterator[tuple[Part, ...]]:
    """The ways in which a file may hold parameter ``name``; the first whose keys are all there is meant.

    Args:
        tied: the head may be missing: it is the embedding then.
    """
    family = FAMILY[str(config["model_type"])]
    if AROUND in config:
        yield from _within(name, shape, config, tied)
    for parts in ((Part(name),), written(name, shape, config)):
        yield parts
        yield tuple(Part(part.key.removeprefix(family.prefix), part.index) for part in parts)
    if name == HEAD and tied:
        yield (Part(family.embedding),)
        yield (Part(family.embedding.removeprefix(family.prefix)),)


def way_in(
    keys: Container[str], name: str, shape: tuple[int, ...], config: Mapping[str, Any], tied: bool
) -> tuple[Part, ...] | None:
    """The one of ``ways`` in which a file with these keys holds the parameter; None: it does not."""
    found = ways(name, shape, config, tied)
    return next((way for way in found if all(part.key in keys for part in way)), None)
