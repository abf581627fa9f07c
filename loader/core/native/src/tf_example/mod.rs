//! Decodes tf.train.Examples to columns.
//!
//! `message` walks through the fields of one Example, `rows` decodes the features that are wanted
//! from it, and `python` does this for many records on threads.
//!
//! Invariants: the values of a record have the bits that protobuf gives, and depend on it and on the
//! features alone. A record that is not written in a usual way, or might be a bad one, is not taken:
//! protobuf decides about it. Memory follows the bytes that are there, never a length that they claim.

mod message;
mod python;
mod rows;

pub use python::register;
