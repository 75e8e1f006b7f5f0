"""Ways to spread the batch: each file holds one `Strategy` and is an implementation by being here."""
