"""Conversions of texts: JSON Lines and Parquet, tokenised or as they are."""
