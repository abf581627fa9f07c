"""tf.train.Example messages, decoded to columns and encoded from them."""
