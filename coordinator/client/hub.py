"""Models of the Hugging Face Hub by name, through its own library: found, fetched to start from, and sent there when done.

``huggingface_hub`` knows the server (``HF_ENDPOINT``), the token (``HF_TOKEN``, or that of ``hf auth login``) and its cache of
files. The token stays on this machine: it goes to the Hub, and neither to the coordinator nor to nodes.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.untrusted_text import Untrusted, untrusted
from coordinator.client.datasets import named_in
from coordinator.client.folders import (
    CONFIG,
    GENERATION,
    NAMES,
    OLDER_TOKENIZERS,
    SETTINGS,
    TEMPLATE,
    TEMPLATES,
    TOKENIZER,
)
from protocol.rest.hub import HubFile

_NAME = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@(?P<revision>[\w./-]{1,200}))?", re.ASCII
)
_INDEX = "model.safetensors.index.json"
_SMALL = (CONFIG, GENERATION, TOKENIZER, SETTINGS, NAMES, TEMPLATE, f"{TEMPLATES}/*.jinja", _INDEX, *OLDER_TOKENIZERS)
_WEIGHTS = re.compile(r"model(-[0-9]{5}-of-[0-9]{5})?\.safetensors")
_FILE = re.compile(r"[\w.-]+(/[\w.-]+){0,4}\.safetensors", re.ASCII)
MAX_LICENSE = 60  # Characters of a licence's name.


class HubError(Exception):
    """The Hub has no such model, or does not give or take it; the text names the way out."""


class HubAwayError(HubError):
    """It does not answer, or cannot now."""


@dataclass(frozen=True)
class HubModel:
    """A model of the Hub at one commit.

    Attributes:
        repository: as ``HuggingFaceTB/SmolLM2-135M-Instruct``.
        commit: that its revision stands for now.
        license: its name there, in ASCII; "" where it has none.
        terms: where the licence is to be read, or who has to agree first.
        gated: whether it is given to those only who have agreed.
        files: all of them.
    """

    repository: str
    commit: str
    license: Untrusted
    terms: Untrusted
    gated: bool
    files: tuple[HubFile, ...]

    @property
    def pinned(self) -> str:
        """Repository and commit, as a job document names them."""
        return f"{self.repository}@{self.commit}"


def sentence(repository: str, commit: str, license_: str, terms: str) -> str:
    """What the licence of a model is, for who is about to use it."""
    said = f"its licence is {untrusted(license_)}" if license_ else "it names no licence"
    return f"{untrusted(repository)} at commit {commit[:12]}: {said}{terms and f' ({untrusted(terms)})'}"


def is_hub_name(text: str) -> bool:
    """Whether a text is the name of a model, ``organisation/name`` or ``organisation/name@revision``."""
    return _NAME.fullmatch(text) is not None


def find(name: str, token: Literal[False] | None = None) -> HubModel:
    """Look a model up; its branch or tag becomes the commit that it stands for now.

    Args:
        token: False: nobody's, though there is one here.
    Raises:
        HubError: there is none, it is for others only, or the Hub does not answer.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise HubError(f"{name[:100]!r} is no name of the Hub: it is organisation/name, or organisation/name@revision")
    with _told(name):
        from huggingface_hub import HfApi

        found = HfApi().model_info(match["repository"], revision=match["revision"], files_metadata=True, token=token)
    card = vars(found.card_data) if found.card_data is not None else {}
    tagged = next((tag.removeprefix("license:") for tag in found.tags or () if tag.startswith("license:")), "")
    license_ = str(card.get("license_name") or card.get("license") or tagged)
    terms = [str(card["license_link"])] if card.get("license_link") else []
    terms += ["gated: whoever uses it has agreed to its terms on its page"] if found.gated else []
    if not re.fullmatch(r"[0-9a-f]{40}", found.sha or ""):
        raise HubError(f"the Hub names no commit of {name}: try again, or download it and give its folder")
    digests = ((one, one.lfs.sha256 if one.lfs is not None else None) for one in found.siblings or ())
    return HubModel(
        match["repository"],
        str(found.sha),
        untrusted(license_.encode("ascii", "replace").decode()[:MAX_LICENSE]),
        untrusted(", ".join(terms), 300),
        bool(found.gated),
        tuple(HubFile(one.rfilename, one.size or 0, digest) for one, digest in digests),
    )


def fetch(
    model: HubModel, weights: bool = True, token: Literal[False] | None = None, cache: Path | None = None
) -> Path:
    """Have a model's folder on this disk, in the library's cache; what is there already is not fetched again.

    Args:
        weights: with them; else only what is small: config, tokenizer, settings, index.
        cache: another folder than the library's own.
    Raises:
        HubError: as ``find``; or it has no weights as safetensors.
    """
    with _told(model.repository):
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars

        if sys.stderr is None or not sys.stderr.isatty():
            disable_progress_bars()

        def snapshot(names: Sequence[str]) -> Path:
            made = snapshot_download(
                model.repository, revision=model.commit, allow_patterns=[*names], token=token, cache_dir=cache
            )
            return Path(made)

        folder = snapshot(_SMALL)
        return snapshot([one.path for one in weights_of(model, folder)]) if weights else folder


def weights_of(model: HubModel, folder: Path) -> Sequence[HubFile]:
    """The files of its weights: once, where a repository has them in several forms.

    Args:
        folder: where what is small of it lies.
    Raises:
        HubError: it has none.
    """
    found = [one for one in model.files if _FILE.fullmatch(one.path) and ".." not in one.path]
    named = named_in(folder / _INDEX)
    ways = (
        [one for one in found if one.path in named],
        [one for one in found if _WEIGHTS.fullmatch(one.path)],
        [one for one in found if "/" not in one.path],
    )
    chosen = next((way for way in ways if way), None)
    if chosen is None:
        other = "GGUF files" if any(one.path.endswith(".gguf") for one in model.files) else "no *.safetensors"
        way = "name the repository that it was made of, or one with safetensors of the same model"
        raise HubError(f"{model.repository} has {other}: {way}")
    return chosen


def address_of(pinned: str, path: str) -> str:
    """Where the Hub has a file of a model at one commit; it may lead on to elsewhere.

    Raises:
        HubError: it is no such name, or no file of weights.
    """
    match = _NAME.fullmatch(pinned)
    if match is None or _FILE.fullmatch(path) is None or ".." in path:
        raise HubError(f"{pinned[:100]!r} and {path[:100]!r} are no file of weights of a model on the Hub")
    with _told(pinned):
        from huggingface_hub import hf_hub_url

        return hf_hub_url(match["repository"], path, revision=match["revision"])


def push(folder: Path, repository: str) -> str:
    """Send a finished folder to the Hub, as one commit; a repository that is not there is made, for its owner's eyes only.

    Returns:
        The page where it is.
    Raises:
        HubError: the name is none, the token may not write there, or the Hub does not answer.
    """
    match = _NAME.fullmatch(repository)
    if match is None or match["revision"]:
        raise HubError(f"{repository[:100]!r} is no name for a repository: give organisation/name")
    with _told(repository):
        from huggingface_hub import HfApi

        api = HfApi()
        made = api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Trained with Cottage", ignore_patterns=[".*"]
        )
    return str(made)


@contextmanager
def _told(name: str) -> Iterator[None]:
    """The library's errors in our words. None repeats a token: they have addresses, statuses and what the server said."""
    try:
        import httpx2
        from huggingface_hub import errors
    except ImportError as error:
        raise HubError("the Hub needs a library that is not here: pip install 'cottage[hub]'") from error
    try:
        yield
    except errors.GatedRepoError as error:
        way = "agree to its terms on its page, then `hf auth login` or set HF_TOKEN"
        raise HubError(f"{name} is gated: {way}") from error
    except errors.RepositoryNotFoundError as error:
        way = "see to its spelling; where it is private, `hf auth login` or set HF_TOKEN"
        raise HubError(f"there is neither a folder {name} here nor such a repository on the Hub: {way}") from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"the Hub has no revision {name.partition('@')[2]} of {name.partition('@')[0]}") from error
    except errors.OfflineModeIsEnabled as error:
        raise HubAwayError("HF_HUB_OFFLINE is set, so the Hub is not asked: give a model's folder") from error
    except errors.HfHubHTTPError as error:
        kind = HubAwayError if error.response.status_code >= 500 else HubError
        raise kind(_refused(error.response.status_code, error.server_message)) from error
    except (httpx2.HTTPError, OSError, errors.HFValidationError) as error:
        raise HubAwayError(f"the Hub does not answer: {untrusted(error, 300)}") from error


def _refused(status: int, said: str | None) -> str:
    if status in (401, 403):
        return "the Hub does not allow this: `hf auth login` with a token that may, or set HF_TOKEN"
    return f"the Hub answers with status {status}: {untrusted(said or 'try again', 300)}"
