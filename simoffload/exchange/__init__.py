"""Foreign file formats: each has a module with ``read_<format>`` or ``write_<format>``."""
