"""Conversions between files of records: TFRecord and ArrayRecord."""
