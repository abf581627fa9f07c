//! Decodes tf.train.Examples to columns, and encodes columns.
//!
//! `message` walks through the fields of one Example, `rows` decodes the features that are wanted
//! from it, `python` does this for many records on threads, and `encode` is the way back.
//!
//! Invariants: the values of a record have the bits that protobuf gives, and depend on it and on the
//! features alone. A record that is not written in a usual way, or might be a bad one, is not taken:
//! protobuf decides about it. Memory follows the bytes that are there, never a length that they claim.

mod encode;
pub(crate) mod message;
mod python;
pub(crate) mod rows;

use pyo3::prelude::*;

/// Registers what Python calls.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    encode::register(module)?;
    python::register(module)
}
