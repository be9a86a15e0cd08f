"""The single-device truth, exact comparison with it, and what a difference most likely means. numpy alone."""
