"""How a federation stands, in sentences: who takes part, and what was spent."""

from protocol.rest.federation import FederationState, PrivacySpent


def budget_words(spent: PrivacySpent | None) -> str:
    """What was spent of the privacy budget, in a sentence."""
    if spent is None:
        return "updates leave as they are: there is no limit to what they tell of owners' data"
    summed = ""
    if spent.sum == "secure":
        summed = f"; nobody sees an update but in a sum, with noise of {spent.honest} honest owners at least"
    unit = "example, a row or line of an owner's data" if spent.unit == "example" else spent.unit
    return (
        f"privacy spent: epsilon {spent.epsilon:.2f} of {spent.epsilon_most:g} at delta {spent.delta:g}, for each {unit}; "
        f"{spent.releases} of {spent.most} rounds were begun{summed}"
    )


def owners_words(state: FederationState) -> str:
    """Who takes part, in a sentence."""
    joined = sum(owner.at is not None for owner in state.owners)
    rows = sum(owner.rows or 0 for owner in state.owners)
    told = f", with {rows:,} rows of those who tell" if rows else ""
    return f"{joined} of {len(state.owners)} owners have joined{told}; a round takes {state.least_owners} at least"


def federation_lines(state: FederationState) -> list[str]:
    """All of it."""
    return [owners_words(state), budget_words(state.privacy)]
