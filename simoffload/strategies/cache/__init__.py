"""The key-value cache: where it is kept, in which format, and what moves it."""
