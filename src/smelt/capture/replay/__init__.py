"""What happens after a graph has run: objects reconstructed, side effects done, or all of it rolled back."""
