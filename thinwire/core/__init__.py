"""The small protocols that everything else implements, and the values that pass between them."""
