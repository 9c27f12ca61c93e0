"""For submitters: upload, quote, submit, watch and download from Python, in the words of the REST interface.

    async with Client("http://127.0.0.1:8470") as cottage:
        data = await cottage.upload(Path("corpus.txt"))
        job = await cottage.create_job({"name": "first", "model": {"preset": "tiny-llama"},
                                        "dataset": {"artifact": data.artifact}, "budget": 5_000_000})
        await cottage.fund(job.id)
        await cottage.wait(job.id)
        await cottage.download_folder(job.id, Path("first"))

Imports nothing of the coordinator's other floors.
"""

from coordinator.client.client import Client, JobUpdate
from coordinator.client.deployments import answers
from coordinator.client.errors import ArchiveError, ClientError, ProblemError, UnreachableError
from coordinator.client.tracking import TrackerError, track

__all__ = [
    "ArchiveError",
    "Client",
    "ClientError",
    "JobUpdate",
    "ProblemError",
    "TrackerError",
    "UnreachableError",
    "answers",
    "track",
]
