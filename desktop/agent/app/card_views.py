"""The cards of a computer that lends several, as its owner sees them."""

from common.untrusted_text import untrusted
from desktop.agent.base.config import Home, Settings
from desktop.agent.hardware.meters import gpus
from desktop.answers import CardView


def views_of(home: Home, settings: Settings) -> tuple[CardView, ...]:
    """What is known of each card while nothing is lent; none where only one is."""
    if not settings.cards:
        return ()
    names = {gpu.uuid: gpu.name for gpu in gpus()}
    key = home.key()
    return tuple(
        CardView(
            gpu=str(card),
            name=untrusted(names.get(str(card), "not in this computer")),
            node=key.card(str(card)).address if number else key.address,
            on=card not in settings.resting,
        )
        for number, card in enumerate(settings.lent)
    )
