//! Panics become errors of Python.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The message of a panic.
pub fn message(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "no message".to_owned()
    }
}

/// What `work` gives; a panic in it is a `RuntimeError`, never PyO3's exception outside `Exception`.
pub fn guarded<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => Err(PyRuntimeError::new_err(format!(
            "a bug in Windrow's native core: {}",
            message(&*panic)
        ))),
    }
}

/// Panics, so that a test sees what becomes of it.
#[pyfunction]
fn panic_for_test() -> PyResult<()> {
    guarded(|| panic!("asked for"))
}

/// Registers the functions of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(panic_for_test, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_both_kinds_are_kept() {
        let plain = catch_unwind(|| panic!("plain")).unwrap_err();
        assert_eq!(message(&*plain), "plain");
        let number = 3;
        let formatted = catch_unwind(|| panic!("number {number}")).unwrap_err();
        assert_eq!(message(&*formatted), "number 3");
    }
}
