"""Any Hugging Face causal language model behind the `Model` interface."""
