//! Chunks of local Zarr arrays: where they are stored, how they are decoded, where cells go.

mod array;
pub(crate) mod files;
mod open_files;
mod reading;
mod scatter;

pub use array::Piece;

use pyo3::prelude::*;

/// Registers the classes of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<reading::ZarrArray>()?;
    module.add_function(wrap_pyfunction!(reading::zarr_places, module)?)?;
    module.add_class::<reading::Batch>()?;
    module.add_class::<reading::Reading>()
}
