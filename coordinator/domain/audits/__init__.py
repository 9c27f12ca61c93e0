"""What audits decide: who is drawn, who looks, what an answer means, and what follows for a node."""
