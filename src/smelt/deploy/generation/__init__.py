"""Language models in a file: their export, and their texts token by token."""
