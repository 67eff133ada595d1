"""To and from the files that Hugging Face's `transformers` opens; needs none of that package."""
