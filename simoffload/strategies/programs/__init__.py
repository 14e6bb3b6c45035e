"""Programs that run models: each is a strategy, its plan and its hooks."""
