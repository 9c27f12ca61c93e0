"""Models as their Hugging Face config says them, without torch: shapes, names, weights, bytes between stages."""
