//! The native core of Windrow: work on stored bytes that needs no interpreter.
//!
//! Each module registers what Python may call; `windrow/core/native.py` is the only caller.
//! Invariants: no panic reaches Python (`guard`), and bytes from disk decide no allocation.

use pyo3::prelude::*;

mod array_record;
mod boxes;
mod codecs;
mod encoders;
mod guard;
mod memory;
mod objects;
mod orders;
mod packing;
pub mod parsers;
mod planning;
mod pool;
mod tf_example;
mod tfrecord;
mod turns;
mod varint;
mod zarr;

/// The names that Python sees: one line per module.
#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("SOURCES", env!("WINDROW_SOURCES"))?;
    guard::register(module)?;
    parsers::register(module)?;
    pool::register(module)?;
    array_record::register(module)?;
    boxes::register(module)?;
    objects::register(module)?;
    orders::register(module)?;
    packing::register(module)?;
    planning::register(module)?;
    tf_example::register(module)?;
    encoders::register(module)?;
    tfrecord::register(module)?;
    zarr::register(module)?;
    Ok(())
}
