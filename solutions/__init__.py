"""The complete answers: hidden from students, and the one source of the stubs in ``handout/``."""
