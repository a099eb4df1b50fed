"""Programs by which a chip is tried, as users write them: capture goes through these files as through theirs."""
