"""Log probabilities at the door, as the stock client reads them."""

import itertools

import pytest
from openai import AsyncOpenAI

from protocol.rest.completions import chat_logprobs, completion_logprobs
from protocol.serving import TokenLogprob
from tests.coordinator.web.conftest import House

TOLD = (TokenLogprob("Mü", -0.5, (("Mü", -0.5), ("Ma", -1.5))), TokenLogprob(" ", -2.0))


def test_both_kinds_have_them_in_their_own_words() -> None:
    chat = chat_logprobs(TOLD)
    assert chat is not None
    assert [(one.token, one.logprob, one.bytes) for one in chat.content] == [
        ("Mü", -0.5, (77, 195, 188)),
        (" ", -2.0, (32,)),
    ]
    assert [other.token for other in chat.content[0].top_logprobs] == ["Mü", "Ma"]
    text = completion_logprobs(TOLD, 10)
    assert text is not None
    assert (text.tokens, text.text_offset) == (("Mü", " "), (10, 12))
    assert text.top_logprobs == ({"Mü": -0.5, "Ma": -1.5}, {})
    assert chat_logprobs(()) is completion_logprobs(()) is None


@pytest.mark.long
async def test_a_real_model_tells_how_likely_its_tokens_were(house: House, answering: str) -> None:
    job = answering
    async with AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none") as client:
        whole = await client.completions.create(
            model=job, prompt="def ", max_tokens=6, temperature=0, logprobs=2, seed=1
        )
        told = whole.choices[0].logprobs
        assert told is not None
        assert len(told.tokens or ()) == 6
        assert [max(at.values()) for at in told.top_logprobs or ()] == pytest.approx(told.token_logprobs), "greedy"
        stream = await client.chat.completions.create(
            model=job,
            messages=[{"role": "user", "content": "add"}],
            max_tokens=6,
            logprobs=True,
            top_logprobs=3,
            seed=1,
            stream=True,
        )
        chunks = [chunk async for chunk in stream]
        tokens = list(
            itertools.chain.from_iterable(
                (chunk.choices[0].logprobs.content or []) for chunk in chunks if chunk.choices[0].logprobs is not None
            )
        )
        assert len(tokens) == 6
        assert all(len(one.top_logprobs) == 3 and one.logprob < 0 for one in tokens)
