"""Packs what is handed out to students, and what Gradescope gets."""
