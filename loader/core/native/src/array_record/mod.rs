//! Reads ArrayRecord files: their chunks, simple and transposed, from files and from memory; and
//! writes them.
//!
//! A file is a run of chunks: 40 bytes of header, then data. A block header of 24 bytes lies at each
//! multiple of 65,536 bytes of the file. `layout` knows the places, `chunk` the headers and hashes,
//! `simple` and `transposed` the data, `read` one chunk, `decoded` its records in memory; `groups` reads
//! chunks while Python does other work, and `python` is what else it calls. `encode`
//! makes chunks of records, `write` puts them into a file, and `writer` is what Python calls for that.
//!
//! Invariants: a chunk that is given out has the header that was written, and, unless the caller
//! gives that up, the data that was written. Whatever the bytes are, nothing is read outside of them,
//! and no memory is taken beyond what so many stored bytes can decompress to.

mod check;
pub(crate) mod chunk;
pub(crate) mod codecs;
mod damage;
mod decoded;
mod encode;
mod file;
mod groups;
pub(crate) mod hash;
pub(crate) mod layout;
pub(crate) mod parallel;
mod python;
pub(crate) mod read;
mod simple;
mod transposed;
mod write;
mod writer;

use pyo3::prelude::*;

/// Registers what Python calls.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    python::register(module)?;
    groups::register(module)?;
    check::register(module)?;
    writer::register(module)
}
