"""Conversions of text: JSON Lines and Parquet, tokenised or as they are."""
