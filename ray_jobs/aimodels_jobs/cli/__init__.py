"""The command line `ai-models`, one module per group of commands. Decisions belong to the modules it calls."""
