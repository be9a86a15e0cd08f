"""Packs what each platform needs into ``dist/platforms``. Neither students nor graders get this."""
