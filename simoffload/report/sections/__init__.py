"""The sections of a report: one file for subjects that belong together."""
