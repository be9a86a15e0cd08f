"""What ships: the student's stubs, and later the platform's archives."""
