"""``make timeline``: pictures of a run of one's own code, ranks over time. Runs in the judge."""
