"""The submitter's commands, each module what people do at one time; ``coordinator.client.cli`` calls them."""
