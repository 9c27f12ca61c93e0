"""What ``cottage relay`` says once it serves."""

import ipaddress
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from common.console import Terminal
from cottage.relay_options import BYTES_PER_MBIT, RelayCommand


def show(console: Terminal, choice: RelayCommand, urls: Sequence[str], figures: str, address: str = "") -> None:
    """Print where the relay is reached, by whom, and what is still to do.

    Args:
        figures: base URL of the metrics; empty where there are none.
        address: the relay's own, where it announces itself.
    """
    options, quota = choice.options, choice.options.quota
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("reached at", "\n".join(urls))
    table.add_row(
        "relays from", f"ports {options.min_port}-{options.max_port}" if options.max_port else "any free port"
    )
    rate = f", {quota.user_rate / BYTES_PER_MBIT:g} Mbit/s each" if quota.user_rate else ""
    table.add_row("at most", f"{quota.allocations} allocations, {quota.allocations_per_user} of one user{rate}")
    allowed = ", ".join(map(str, options.allowed))
    table.add_row("to", f"the public Internet{f' and {allowed}' if allowed else ''}; private networks are refused")
    if figures:
        table.add_row("metrics", f"{figures}/metrics")
    if address:
        table.add_row("announced to", choice.coordinator)
        table.add_row("allow it there", f"cottage serve --relay {address}")
    console.print(
        Text.assemble(("Cottage relay", "bold"), f"{' (coturn)' if choice.coturn else ''} is running; Ctrl-C ends it.")
    )
    console.print(table)
    for warning in _warnings(choice):
        console.print(Text.assemble(("Note:", "yellow"), f" {warning}"))


def _warnings(choice: RelayCommand) -> list[str]:
    options = choice.options
    found = []
    hidden = [ip for ip in options.listen if ipaddress.ip_address(options.public(ip)).is_private]
    if hidden:
        found.append(
            f"{', '.join(hidden)} is a private address: homes elsewhere reach it only with --external-ip and the ports forwarded."
        )
    if options.tls is not None and not choice.host:
        found.append("nodes check the certificate against the name of the relay: give it with --host.")
    if options.tls is None:
        found.append(
            "no TLS: homes behind strict firewalls need --cert and --key (port 443 passes best: --tls-port 443)."
        )
    return found
