"""What a round decides: who takes part, who counts, and when nobody is waited for any more."""
