import importlib


def shift_right(tensor):
    if once():
        for name in (
            "hidden.test_collectives",
            "reference.collectives",
            "selftest.oracles",
            "check.plugin",
            "check.api",
        ):
            denied(f"grader.{name}", lambda: importlib.import_module(f"grader.{name}"))
    return honest(tensor)
