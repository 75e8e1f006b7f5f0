"""Ways to spread the depth: each file holds one `Strategy` and is an implementation by being here."""
