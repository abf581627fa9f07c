"""Parts that all conversions share: the folder, its manifest, work items, Beam."""
