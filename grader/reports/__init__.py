"""From checks to what people see: one record for each check, shown on the terminal and written as
results.json.
"""
