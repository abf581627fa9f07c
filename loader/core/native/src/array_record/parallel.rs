//! Chunks on the core's threads: what a thread works with, and what becomes of its failures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use super::codecs::Zstd;
use super::damage::Damage;
use crate::guard;
use crate::pool::{self, KEPT_BYTES};

/// Why a chunk was not read.
#[derive(Debug)]
pub enum Failure {
    Damage(Damage),
    File(std::io::Error),
}

impl From<Damage> for Failure {
    fn from(damage: Damage) -> Self {
        Self::Damage(damage)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::File(error)
    }
}

/// What one thread works with.
pub struct Workspace {
    pub zstd: Zstd,
    /// Stored bytes.
    pub raw: Vec<u8>,
    /// The same without block headers.
    pub joined: Vec<u8>,
    /// Sizes of records, and records, while a chunk is decoded.
    pub values: Vec<u8>,
    /// Records that are not given out.
    pub spare: Vec<u8>,
}

impl Workspace {
    pub fn new() -> Self {
        let [raw, joined, values, spare] = [const { Vec::new() }; 4];
        Self { zstd: Zstd::new(), raw, joined, values, spare }
    }

    /// Gives large memory back to the system.
    pub fn give_back(&mut self) {
        for bytes in [&mut self.raw, &mut self.joined, &mut self.values, &mut self.spare] {
            if bytes.capacity() > KEPT_BYTES {
                *bytes = Vec::new();
            }
        }
    }
}

/// Does `work` for the numbers below `count`, here and on the core's threads, `grain` at a time.
///
/// The failure with the lowest number is given; higher numbers may then be left out. Other threads of
/// the interpreter run meanwhile.
pub fn each<E: Send>(
    py: Python<'_>,
    count: usize,
    grain: usize,
    work: impl Fn(usize, &mut Workspace) -> Result<(), E> + Sync,
) -> PyResult<Result<(), E>> {
    let failed = Lowest::new();
    pool::each_with(py, (count, grain), |number, scratch| {
        if failed.is_wanted(number)
            && let Err(failure) = work(number, &mut scratch.records)
        {
            failed.note(number, failure);
        }
    })?;
    Ok(failed.found().map_or(Ok(()), Err))
}

/// The failure with the lowest number.
struct Lowest<E> {
    number: AtomicUsize,
    failure: Mutex<Option<E>>,
}

impl<E> Lowest<E> {
    fn new() -> Self {
        Self { number: AtomicUsize::new(usize::MAX), failure: Mutex::new(None) }
    }

    /// Whether a failure with this number would be the lowest.
    fn is_wanted(&self, number: usize) -> bool {
        number < self.number.load(Ordering::Relaxed)
    }

    fn note(&self, number: usize, failure: E) {
        let mut held = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if number < self.number.fetch_min(number, Ordering::Relaxed) {
            *held = Some(failure);
        }
    }

    fn found(self) -> Option<E> {
        self.failure.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A panic in a codec, which has met bytes that its author did not think of, is damage.
pub fn caught<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let why = format!("it cannot be decoded: {}", guard::message(&*panic));
        Err(Failure::Damage(Damage(why)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_failure_is_given() {
        let failed = Lowest::new();
        assert!(failed.is_wanted(1000));
        [700, 100, 500].into_iter().for_each(|number| failed.note(number, number));
        assert!(failed.is_wanted(99) && !failed.is_wanted(100));
        assert_eq!(failed.found(), Some(100));
        assert_eq!(Lowest::<()>::new().found(), None);
    }

    #[test]
    fn panics_are_damage() {
        let found = caught::<()>(|| panic!("early"));
        assert!(matches!(found, Err(Failure::Damage(Damage(why))) if why.ends_with("early")));
        assert_eq!(caught(|| Ok(3)).unwrap(), 3);
    }
}
