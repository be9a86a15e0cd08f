import importlib


def shift_right(tensor):
    if once():
        for name in (
            "hidden.test_collectives",
            "judging.collective_truth",
            "selftest.oracles",
            "reports.plugin",
            "face",
        ):
            denied(f"grader.{name}", lambda: importlib.import_module(f"grader.{name}"))
    return honest(tensor)
