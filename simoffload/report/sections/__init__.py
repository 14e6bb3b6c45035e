"""What is told of each subject: one file for subjects that belong together."""
