"""Foreign file formats, one module each: ``read_x`` or ``write_x``."""
