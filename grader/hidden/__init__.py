"""The hidden checks, one file for each part. Not shipped to students."""
