"""What engines and cards say of themselves during a run: pages read once a second, kept in the run folder, digested."""
