try:
    import a_module_that_nobody_has
except ImportError as error:
    raise RuntimeError("cannot go on") from error
