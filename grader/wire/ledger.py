"""Defines the kinds of the entries in a meter's ledger: see ``rank.meter.Meter``."""

# A product of matrices, a send, and an operator of a loss, which is measured by its entries.
KINDS = PRODUCT, SEND, ENTRIES = "product", "send", "entries"
