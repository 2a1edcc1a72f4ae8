"""Dead letters: browse, plan, apply, dialects."""
