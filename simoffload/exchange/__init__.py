"""Foreign file formats: each has a function ``read_<format>`` or ``write_<format>``."""
